/* SIMULATED NVML, functions without data: clocks, fans, ECC, links. They return "not supported"; without
 * the symbol callers get "function not found", at which some monitors print a traceback. The arguments are ignored, so
 * one body serves all. */
#include "nvml_types.h"

#define NOT_SUPPORTED(name)                                                                                            \
    nvmlReturn_t name(void)                                                                                            \
    {                                                                                                                  \
        return nvml_initialised() ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNINITIALIZED;                               \
    }

/* hardware of the card */
NOT_SUPPORTED(nvmlDeviceGetBoardId)
NOT_SUPPORTED(nvmlDeviceGetBoardPartNumber)
NOT_SUPPORTED(nvmlDeviceGetBrand)
NOT_SUPPORTED(nvmlDeviceGetMemoryBusWidth)
NOT_SUPPORTED(nvmlDeviceGetNumGpuCores)
NOT_SUPPORTED(nvmlDeviceGetSerial)
NOT_SUPPORTED(nvmlDeviceGetVbiosVersion)
NOT_SUPPORTED(nvmlDeviceGetInforomImageVersion)

/* topology */
NOT_SUPPORTED(nvmlDeviceClearCpuAffinity)
NOT_SUPPORTED(nvmlDeviceGetMemoryAffinity)
NOT_SUPPORTED(nvmlDeviceGetNumaNodeId)
NOT_SUPPORTED(nvmlDeviceGetP2PStatus)
NOT_SUPPORTED(nvmlDeviceGetTopologyCommonAncestor)
NOT_SUPPORTED(nvmlDeviceGetTopologyNearestGpus)
NOT_SUPPORTED(nvmlDeviceSetCpuAffinity)
NOT_SUPPORTED(nvmlSystemGetTopologyGpuSet)

/* fans, limits of power */
NOT_SUPPORTED(nvmlDeviceGetFanSpeed)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed_v2)
NOT_SUPPORTED(nvmlDeviceGetNumFans)
NOT_SUPPORTED(nvmlDeviceGetPerformanceState)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementDefaultLimit)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimitConstraints)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementMode)
NOT_SUPPORTED(nvmlDeviceGetPowerState)
NOT_SUPPORTED(nvmlDeviceGetTemperatureThreshold)

/* clocks */
NOT_SUPPORTED(nvmlDeviceGetApplicationsClock)
NOT_SUPPORTED(nvmlDeviceGetClock)
NOT_SUPPORTED(nvmlDeviceGetClockInfo)
NOT_SUPPORTED(nvmlDeviceGetCurrentClocksEventReasons)
NOT_SUPPORTED(nvmlDeviceGetCurrentClocksThrottleReasons)
NOT_SUPPORTED(nvmlDeviceGetDefaultApplicationsClock)
NOT_SUPPORTED(nvmlDeviceGetMaxClockInfo)
NOT_SUPPORTED(nvmlDeviceGetSupportedGraphicsClocks)
NOT_SUPPORTED(nvmlDeviceGetSupportedMemoryClocks)
NOT_SUPPORTED(nvmlDeviceResetApplicationsClocks)
NOT_SUPPORTED(nvmlDeviceResetGpuLockedClocks)
NOT_SUPPORTED(nvmlDeviceResetMemoryLockedClocks)
NOT_SUPPORTED(nvmlDeviceSetApplicationsClocks)
NOT_SUPPORTED(nvmlDeviceSetGpuLockedClocks)
NOT_SUPPORTED(nvmlDeviceSetMemoryLockedClocks)

/* errors */
NOT_SUPPORTED(nvmlDeviceGetDetailedEccErrors)
NOT_SUPPORTED(nvmlDeviceGetEccMode)
NOT_SUPPORTED(nvmlDeviceGetMemoryErrorCounter)
NOT_SUPPORTED(nvmlDeviceGetRemappedRows)
NOT_SUPPORTED(nvmlDeviceGetRetiredPages)
NOT_SUPPORTED(nvmlDeviceGetRetiredPages_v2)
NOT_SUPPORTED(nvmlDeviceGetRetiredPagesPendingStatus)
NOT_SUPPORTED(nvmlDeviceGetTotalEccErrors)
NOT_SUPPORTED(nvmlEventSetCreate)

/* links */
NOT_SUPPORTED(nvmlDeviceGetBAR1MemoryInfo)
NOT_SUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration)
NOT_SUPPORTED(nvmlDeviceGetCurrPcieLinkWidth)
NOT_SUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration)
NOT_SUPPORTED(nvmlDeviceGetMaxPcieLinkWidth)
NOT_SUPPORTED(nvmlDeviceGetNvLinkCapability)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_SUPPORTED(nvmlDeviceGetNvLinkState)
NOT_SUPPORTED(nvmlDeviceGetNvLinkVersion)
NOT_SUPPORTED(nvmlDeviceGetPcieReplayCounter)
NOT_SUPPORTED(nvmlDeviceGetPcieThroughput)

/* units beside the SMs, display */
NOT_SUPPORTED(nvmlDeviceGetDecoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetDisplayActive)
NOT_SUPPORTED(nvmlDeviceGetDisplayMode)
NOT_SUPPORTED(nvmlDeviceGetDriverModel)
NOT_SUPPORTED(nvmlDeviceGetDriverModel_v2)
NOT_SUPPORTED(nvmlDeviceGetEncoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetSamples)

/* modes */
NOT_SUPPORTED(nvmlDeviceGetConfComputeMemSizeInfo)
NOT_SUPPORTED(nvmlDeviceGetPersistenceMode)
NOT_SUPPORTED(nvmlDeviceSetPersistenceMode)

/* changing of MIG mode, streams of GPM */
NOT_SUPPORTED(nvmlDeviceSetMigMode)
NOT_SUPPORTED(nvmlGpmQueryIfStreamingEnabled)
NOT_SUPPORTED(nvmlGpmSetStreamingEnabled)

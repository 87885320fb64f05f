/* The names shared with slurm_share/core/names.py: SS_X here is X there, compared by tests/contract/test_vocabulary.py.
 * names.py documents them, and the plan's format. */
#ifndef SLURM_SHARE_NAMES_H
#define SLURM_SHARE_NAMES_H

/* the option */
#define SS_PLUGIN_NAME "share_gpu"
#define SS_OPTION "share-gpu"
#define SS_OPTION_OFF "off"
#define SS_OPTION_MEM "mem"
#define SS_OPTION_SM "sm"
#define SS_OPTION_MPS "mps"
#define SS_SM_EVEN "even"
#define SS_SM_FREE "free"
#define SS_SM_STATIC "static"
#define SS_OPTION_SHARING "sharing"
#define SS_SHARING_AUTO "auto"
#define SS_SHARING_MPS "mps"
#define SS_SHARING_TIME_SLICING "time-slicing"
#define SS_SHARING_EXCLUSIVE "exclusive"
#define SS_MPS_ON "on"
#define SS_MPS_OFF "off"
#define SS_OPTION_SLOT_WAIT "slot-wait"
#define SS_OPTION_FORM "N[,mem=SIZE[:SIZE]][,sm=PERCENT|even|free|static][,sharing=auto|mps|time-slicing|exclusive], or off"
#define SS_OPTION_EXAMPLE "4,mem=8G"
#define SS_SHARE_MAX 60
#define SS_MEM_MAX_MIB 16777216
#define SS_MEM_MIN_MIB 64
#define SS_MEM_BARE_MIN_MIB 512
#define SS_OPTION_MAX_BYTES 64

/* how it is passed on */
#define SS_JOB_CONTROL_VARIABLE "SHARE_GPU"
#define SS_HOOK_VARIABLE "SPANK_SHARE_GPU"
#define SS_JOB_CONTROL_DIRECT "SHARE_GPU_SRUN"
#define SS_HOOK_DIRECT "SPANK_SHARE_GPU_SRUN"
#define SS_JOB_CONTROL_NO_GPUS "SHARE_GPU_NONE"
#define SS_JOB_CONTROL_OFF "SHARE_GPU_OFF"

#define SS_VERDICT "slurm-share"
#define SS_VERDICT_EXTRA "SLURM_JOB_EXTRA"
#define SS_VERDICT_COMMENT "SLURM_JOB_COMMENT"

/* the state folder */
#define SS_CONFIG_FILE "/etc/slurm-share/config.toml"
#define SS_STATE_ROOT "/run/slurm-share"
#define SS_USER_FOLDER "user"
#define SS_JOBS_FOLDER "jobs"
#define SS_PLAN_FILE "plan"
#define SS_LOADED_FILE "loaded"
#define SS_UNSHARED_FOLDER "unshared"
#define SS_USAGE_FOLDER "usage"
#define SS_GPU_JOBS_FOLDER "gpu-jobs"
#define SS_LIMITS_PROGRAM "/opt/slurm-share/bin/slurm-share-limits"
#define SS_LIMITS_SOCKET "limits.socket"
#define SS_LIMITS_LOCK "limits.lock"
#define SS_LIMITS_RECORD "limits"
#define SS_ENV_LIMITS "_SLURM_SHARE_LIMITS"
#define SS_SLOTS_FOLDER "slots"
#define SS_SLOTS_LOCK "lock"
#define SS_SLOT_USED "used"
#define SS_SLOTS_QUEUE "queue"
#define SS_SLOTS_REFUSED "refused"
#define SS_QUEUE_STEP_PLACES 1024
#define SS_QUEUE_CLAIMS 1099511627776
#define SS_QUEUE_STEPS 1125899906842624
#define SS_QUEUE_ROOM 2048
#define SS_QUEUE_TOLD 1152921504606846976
#define SS_MPS_FOLDER "mps"
#define SS_NO_MPS_FOLDER "no-mps"

/* the hooks' helper */
#define SS_LISTING_SETTING "exclusive_user_nodes"
#define SS_USAGE_SETTING "usage_record"
#define SS_JOB_MAPPING_SETTING "job_mapping_folder"
#define SS_GPUSTAT_SETTING "gpustat_folder"
#define SS_HELPER_FOLDER "/run/slurm-share.hooks"
#define SS_HELPER_SOCKET "socket"
#define SS_HELPER_LOCK "lock"
#define SS_HELPER_STARTED "started"
#define SS_HELPER_MOST_BYTES 4194304
#define SS_HELPER_MOST_VARIABLES 1000
#define SS_HELPER_TAKES "T"
#define SS_HELPER_BEGINS "B"
#define SS_HELPER_ENDED "E"
#define SS_ENV_FRONT "SLURM_SHARE_FRONT"

/* the plan */
#define SS_PLAN_MAGIC "slurm-share-plan 3"
#define SS_PLAN_MAX_LINE 4096
#define SS_PLAN_MAX_BYTES 4194304
#define SS_PLAN_MAX_SLOTS 1024
#define SS_NOTE_OF_GUARANTEE "mem="

/* the variables of a task */
#define SS_ENV_SLOT "SLURM_SHARE_SLOT"
#define SS_SLOT_NONE "none"
#define SS_ENV_SLOTS "SLURM_SHARE_SLOTS"
#define SS_ENV_RANK "SLURM_SHARE_RANK"
#define SS_ENV_SIZE "SLURM_SHARE_SIZE"
#define SS_ENV_JOB "SLURM_SHARE_JOB_ID"
#define SS_ENV_REQUEST "SLURM_SHARE_REQUEST"
#define SS_ENV_GIVEN "_SLURM_SHARE_GIVEN"
#define SS_GIVEN_PREFIX "SLURM_SHARE_"
#define SS_GIVEN_MAX_BYTES 16384
#define SS_ENV_GPU_UUID "SLURM_SHARE_GPU_UUID"
#define SS_ENV_GPU_INDEX "SLURM_SHARE_GPU_INDEX"
#define SS_ENV_GPU_MINOR "SLURM_SHARE_GPU_MINOR"
#define SS_ENV_PER_GPU "SLURM_SHARE_PER_GPU"
#define SS_ENV_CORES "SLURM_SHARE_CORES"
#define SS_ENV_MPS "SLURM_SHARE_MPS"
#define SS_ENV_SHARING "SLURM_SHARE_SHARING"
#define SS_ENV_MEM_LIMIT "SLURM_SHARE_MEM_LIMIT"
#define SS_MEM_LIMIT_DRIVER "driver"
#define SS_MEM_LIMIT_MPS "mps"
#define SS_MEM_LIMIT_NONE "none"
#define SS_ENV_SIMULATED "SLURM_SHARE_SIMULATED"
#define SS_ENV_MPS_PIPE "CUDA_MPS_PIPE_DIRECTORY"
#define SS_ENV_MPS_PROTOCOL "CUDA_MPS_PROTOCOL_VERSION"
#define SS_ENV_MPS_PARTITION "CUDA_MPS_SM_PARTITION"
#define SS_ENV_SMS "SLURM_SHARE_SMS"
#define SS_ENV_MPS_MEMORY "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
#define SS_ENV_MPS_THREADS "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#define SS_ENV_CONNECTIONS "CUDA_DEVICE_MAX_CONNECTIONS"
#define SS_ENV_VISIBLE_DEVICES "CUDA_VISIBLE_DEVICES"
#define SS_ENV_THREADS "OMP_NUM_THREADS"
#define SS_ENV_JAX_FRACTION "XLA_PYTHON_CLIENT_MEM_FRACTION"
#define SS_ENV_TF_GROWTH "TF_FORCE_GPU_ALLOW_GROWTH"

/* exit codes */
#define SS_EXIT_OK 0
#define SS_EXIT_USAGE 2
#define SS_EXIT_NODE_UNWELL 1
#define SS_EXIT_SAVED 75
#define SS_EXIT_REFUSED 69

#endif

"""Flat modules of pPython, and the names that `from X import *` imports from each.

pPython's modules have no `__all__`, so each also exports its own imports, and programs rely on that. The lists are
those of pPython 0.10.4 without its internal names (LEFT_OUT).
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENDS = _names("GPC MPI_Comm_rank OS np os pyMCW pyMPI_Sleep re sleep")
"""Names in modules that send or receive."""
_RECEIVE = _ENDS | _names("sys timer")
_SEND = _RECEIVE | _names("MPI_Recv MPI_Send")
_TREE = _SEND | _names("factorint")
_BROADCAST = _TREE | _names("MPI_Comm_size MPI_Tcast")
_FIND = _SEND | _names("GPU size inmap find")
_FALLS = _names("Falls math np print_falls print_pitfalls")
_ARRAYS = _FIND | _FALLS | _names("Dmap Dmat PitFalls ceil floor getsizeof lcm local ndims put_local submat tup2ary")
"""Names in modules that use distributed arrays."""
_AGG = _ARRAYS | _names("agg agg_by_topology factorint")
_REMAP = _ARRAYS | _names("dcomplex remap zeros")
_UNARY = _ARRAYS | _names("numpy unfun")

_IMPORTED: dict[str, frozenset[str]] = {
    **dict.fromkeys(_names("MPI_Comm_rank MPI_Comm_size pyMPI_Comm_dir pyMPI_Host_name pyMPI_Host_rank"), frozenset()),
    **dict.fromkeys(_names("Falls PitFalls inmap lcm print_falls print_pitfalls summation"), frozenset()),
    "pyMPI_Save_messages": frozenset(),
    **dict.fromkeys(_names("dcomplex double local partition_1d put_local tup2ary"), _names("np")),
    **dict.fromkeys(_names("cos sin uint16 uint32 uint64 uint8 unfun"), _UNARY),
    **dict.fromkeys(_names("Dmat global_block_range global_block_ranges global_ind grid oagg ones rand"), _ARRAYS),
    **dict.fromkeys(_names("sparse submat synch zeros"), _ARRAYS),
    # messages
    "SendMsg": _SEND | _names("MPI_Mcast"),
    "RecvMsg": _RECEIVE | _names("MPI_Recv"),
    "BcastMsg": _BROADCAST | _names("MPI_Bcast"),
    "ProbeMsg": _ENDS | _names("MPI_Probe glob"),
    "multicast": _FIND | _names("ceil"),
    "gagg": _RECEIVE | _names("MPI_Mcast MPI_Recv MPI_Send RecvMsg SendMsg factorint"),
    **dict.fromkeys(("MPI_Send", "MPI_Recv"), _RECEIVE - {"GPC"}),
    "MPI_Bcast": _BROADCAST,
    "MPI_Mcast": _RECEIVE - {"GPC"} | _names("MPI_Recv"),
    "MPI_Tcast": _TREE,
    "MPI_Probe": _ENDS - {"GPC"} | _names("glob"),
    "MPI_Init": _names("OS os pyMCW"),
    "MPI_Finalize": _names("MPI_Comm_rank pyMCW pyMPI_Host_rank sys"),
    "MPI_Abort": _names("OS glob os random string sys"),
    "MPI_Run": _names("MPI_Comm_size OS np os pyMCW pyMPI_Host_name pyMPI_Host_rank re sys"),
    "pyMPI_Sleep": _names("sleep"),
    "pyMPI_Delete_all": _names("os shutil"),
    **dict.fromkeys(("Np", "Pid"), _names("GPC")),
    "pPython_init": _names("GPC MPI_Comm_rank MPI_Comm_size MPI_Init OS os pyMCW"),
    "pPython_finalize": _names("MPI_Comm_rank MPI_Finalize pyMCW pyMPI_Host_rank sys"),
    **dict.fromkeys(("pPython_ver", "pyMPI_Ver"), _names("pathlib")),
    # maps and arrays
    "Dmap": _names("getsizeof np pyMCW"),
    **dict.fromkeys(("agg", "display"), _AGG),
    "agg_all": _AGG | _BROADCAST | _names("BcastMsg MPI_Bcast"),
    "agg_by_topology": _TREE | _FALLS | _names("GPU size"),
    "remap": _REMAP - {"remap"},
    "transpose_grid": _ARRAYS | _names("dcomplex global_block_ranges ones zeros"),
    "fft": _REMAP | _names("proc_grid"),
    "find": _FIND,
    "mtimes": _REMAP | _names("multicast summation"),
    "size": _names("GPU np os"),
    "ndims": _names("GPU np os size"),
}

FLAT: dict[str, tuple[str, ...]] = {
    module: tuple(sorted(imported | {module})) for module, imported in _IMPORTED.items()
} | {
    module: tuple(sorted(names.split()))
    for module, names in {
        "pyMPI_COMM_WORLD": "MPI_COMM_WORLD",
        "exec_shell_cmd": "ExecShellCmd PIPE Popen",
        "pyMPI_Buffer_file": "os pyMPI_Buffer_file",
        "pyMPI_Lock_file": "np os pyMPI_Lock_file",
        "checkOS": ("islinux ismac ispc isunix listLinuxSystem listMacSystem listPCSystem platform systemName"),
        "pRUN": (
            "MPI_Abort MPI_Comm_size MPI_Run OS datetime floor glob math np os pPython_ver pRUN pathlib platform pyMCW "
            "pyMPI_Delete_all pyMPI_Host_name pyMPI_Host_rank pyMPI_Sleep random re shutil sleep string sys time timer"
        ),
    }.items()
}
"""Names of `from MODULE import *`, by module."""

LEFT_OUT = _names(
    "DMAP_PATH DMAT_PATH ET GRIDPYTHON_PATH LAUNCH_TIMING LOCAL_PYTHONMPI_CONFIG_PATH LineSgmt "
    "PPYTHON_HOME PPYTHON_PATH PYTHONMPI_PATH PYTHON_CONF_LOCAL agg_in_node check_allowance check_runtime "
    "check_triples convert_to_dict csr_matrix detect_transport dispatch dmat_type dpitfalls exec_subsref "
    "falls_intersection gen_commands gen_falls gen_new_list gen_pitfalls get_cpu_info get_global_ind get_ind_range "
    "get_local_falls get_local_ind get_local_proc get_queue_cpu_table getpass grid_abort grid_config_init "
    "grid_config_local grid_global_ind grid_resource_policy grid_run grid_status inspect launch_non_triples "
    "launch_with_triples load_dict_from_pickle local_dims ls_intersection map_procs_to_cores n_dim_find psutil "
    "pyMPI4PY_Commands pyMPI_Comm_init pyMPI_Comm_settings pyMPI_Comm_settings_local pyMPI_Commands "
    "pyMPI_Dir_map pyMPI_Dir_translate pyMPI_Wait reconstruct replace_token save_dict_to_pickle scipy "
    "set_remote_cc slurm2hostmap slurm_jobid_host_association slurm_submit_job slurm_write_job_script subprocess "
    "subsasgn subsasgn_1D subsasgn_2D subsasgn_3D subsasgn_4D subsasgn_data subsref"
)
"""Internal names of pPython (FALLS arithmetic, message files, schedulers) without a counterpart here."""

NO_COUNTERPART = LEFT_OUT - _names("ET csr_matrix dispatch getpass inspect psutil scipy subprocess dmat_type") | _names(
    "MPI4PY check_mount dict_to_hdf5 dict_with_pickle gagg_add gen_cpu_list grid_config pRUN_Parallel_wrapper"
)
"""Flat modules of pPython without a counterpart; importing one raises an error that says so."""


def _gathered(modules: str) -> tuple[str, ...]:
    return tuple(sorted({name for module in modules.split() for name in FLAT[module]}))


GATHERED: dict[str, tuple[str, ...]] = {
    "map": _gathered("Dmap inmap ones rand zeros"),
    "dmat": _gathered(
        "Dmat Falls PitFalls agg agg_all agg_by_topology cos dcomplex double fft find global_block_range "
        "global_block_ranges global_ind grid local mtimes ndims oagg print_falls print_pitfalls put_local sin size "
        "submat summation synch uint16 uint32 uint64 uint8 unfun"
    ),
    "utils": _gathered(
        "BcastMsg Np Pid ProbeMsg RecvMsg SendMsg display lcm multicast pPython_finalize pPython_init pPython_ver pRUN "
        "partition_1d remap sparse transpose_grid tup2ary"
    ),
    "pmpi": _gathered(
        "MPI_Abort MPI_Bcast MPI_Comm_rank MPI_Comm_size MPI_Finalize MPI_Init MPI_Mcast MPI_Probe MPI_Recv MPI_Run "
        "MPI_Send MPI_Tcast checkOS pyMPI_Buffer_file pyMPI_COMM_WORLD pyMPI_Comm_dir pyMPI_Delete_all "
        "pyMPI_Host_name pyMPI_Host_rank pyMPI_Save_messages pyMPI_Sleep pyMPI_Ver"
    ),
    "sched": (),
}
"""Names of pPython's sub-modules, each of which collects those of flat modules."""

FLAT |= {"ll_map": GATHERED["map"], "ll_dmat": GATHERED["dmat"]}

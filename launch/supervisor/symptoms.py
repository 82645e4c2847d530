"""The texts by which a cause shows in a log of verl, Ray, torch, SGLang, vLLM, Hydra, Slurm or Apptainer.

A text counts in one of two shapes only. RAISED: as the first line of an exception that a traceback leads to.
SAID: as a whole line that the program prints when it gives up. So a model's answer, a progress bar, a printed
configuration or a warning that quotes such a text is no cause.
"""

import re
from typing import Dict, Optional, Pattern, Tuple


def _any(*texts: str) -> Pattern[str]:
    return re.compile("|".join(f"(?:{text})" for text in texts))


# What other failures follow from. In the order in which they are asked: a disk that is full is an OSError with a
# path, and CUDA's memory is named in errors of NCCL.
ROOTS = (
    "cuda-out-of-memory",
    "out-of-memory",
    "disk-full",
    "reward-outage",
    "port-taken",
    "verl-config",
    "gpu-unusable",
    "permission-denied",
    "missing-path",
    "image",
    "import-error",
)
# What is left behind by a failure elsewhere as often as it is one.
LINKS = ("nccl", "ray-node-lost", "worker-died")

RAISED: Dict[str, Pattern[str]] = {
    "cuda-out-of-memory": _any(
        r"^torch(?:\.cuda)?\.OutOfMemoryError\b",
        r"\b(?:CUDA|HIP) out of memory",
        r"\bCUDA (?:driver )?error: out of memory",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        r"No available memory for the cache blocks",
        r"Free memory on device .*is less than desired GPU memory utilization",
        r"Cuda failure (?:2 )?'out of memory'",
    ),
    "out-of-memory": _any(
        r"node running low on memory",
        r"^(?:\w+\.)*_?\w*MemoryError\b",
        r"\[Errno 12\]|Cannot allocate memory",
        r"std::bad_alloc",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        r"ObjectStoreFullError",
    ),
    "disk-full": _any(
        r"\[Errno 28\]|No space left on device|code: 28\b",
        r"\[Errno 122\]|Disk quota exceeded|code: 122\b",
        r"PytorchStreamWriter failed writing file|inline_container\.cc.*unexpected pos",
        r"basic_ios::clear: iostream error|basic_ios::clear: unspecified iostream_category error",
        r"OutOfDiskError",
    ),
    "reward-outage": _any(r"\bReward(?:Outage|Reply|Config)?Error\b"),
    "port-taken": _any(
        r"\[Errno 98\]|EADDRINUSE|[Aa]ddress already in use",
        r"Session name .* does not match persisted value",
        r"Ray component \S+ is trying to use a port number \d+ that is used by other components",
    ),
    "verl-config": _any(
        r"^(?:hydra|omegaconf)\.errors\.(?!InstantiationException)",
        r"^(?:ConfigCompositionException|MissingConfigException|OverrideParseException|ConfigKeyError)\b",
        r"^(?:ConfigAttributeError|ConfigTypeError|ConfigValueError|MissingMandatoryValue|Interpolation\w+Error)\b",
        r"Key '.*' is not in struct",
    ),
    "gpu-unusable": _any(
        r"No CUDA GPUs are available|Found no NVIDIA driver|No CUDA runtime is found",
        r"CUDA driver version is insufficient|The NVIDIA driver on your system is too old",
        r"CUDA error: (?:no CUDA-capable device|all CUDA-capable devices are busy|invalid device ordinal)",
        r"CUDA error: (?:initialization error|system not yet initialized|uncorrectable (?:ECC error|NVLink))",
        r"CUDA error: (?:no kernel image is available|API call is not supported in the installed CUDA driver)",
        r"NVMLError_(?:DriverNotLoaded|LibRmVersionMismatch|GpuIsLost)|Driver/library version mismatch",
        r"Torch not compiled with CUDA enabled",
    ),
    "permission-denied": _any(r"^PermissionError\b|\[Errno (?:1|13|30)\]|Permission denied"),
    "missing-path": _any(
        r"^FileNotFoundError\b|^NotADirectoryError\b|\[Errno 2\]|No such file or directory",
        r"HFValidationError|LocalEntryNotFoundError|RepositoryNotFoundError",
        r"does not appear to have a file named|is not a local folder and is not a valid model identifier",
        r"Incorrect path_or_model_id|Repo id must be in the form",
    ),
    "image": _any(r"^(?:\w+\.)*(?:ImageDamaged|StackError)\b"),
    "import-error": _any(
        r"^ModuleNotFoundError\b|^ImportError\b", r"cannot open shared object file|undefined symbol: "
    ),
    "nccl": _any(
        r"\bDistBackendError\b.*NCCL|\bNCCL error\b",
        r"\bnccl(?:System|Remote|Internal|UnhandledCuda|InvalidUsage)Error\b",
        r"NCCL communicator was aborted|NCCL timeout|caught collective operation timeout",
    ),
    "ray-node-lost": _any(
        r"\b(?:NodeDiedError|LocalRayletDiedError)\b",
        r"its node has died|node .*(?:was marked dead|has died)|raylet (?:process )?(?:died|is dead)",
        r"Failed to connect to GCS|GCS.*(?:is|has been) (?:down|unavailable)|gcs_server.*(?:died|crashed)",
    ),
    "worker-died": _any(r"\b(?:ActorDiedError|WorkerCrashedError|OwnerDiedError|ActorUnavailableError)\b"),
}

_ERROR = r"^(?:[\w./-]+: ){0,3}(?:error|fatal|FATAL|ERROR|Error):?\s.*"
_KERNEL = r"^(?:\S+ kernel: |kernel: )?(?:\[ *[\d.]+\] )?"
_SLURMD = r"^slurmstepd(?:-\S+)?: error: "
_RAYLET = r"^(?:\[[^\]]*\] )?(?:\(raylet\) )?(?:\S+: )?"
_BRACKETS = r"^(?:\[[^\]]*\]:? *)*"
_NO_FILE = r"(?:[Nn]o such file or directory|does not exist|[Nn]o such folder)\b"

SAID: Dict[str, Pattern[str]] = {
    "cuda-out-of-memory": _any(
        r"^\[torch_memory_saver\.cpp\] CUresult error: 2 \(out of memory\)",
        r"^what\(\): +(?:.*terminated with exception: )?CUDA (?:error: )?out of memory",
        r"^\S+:\d+:\d+ \[\d+\] .*Cuda failure (?:2 )?'out of memory'",
    ),
    "out-of-memory": _any(
        rf"{_RAYLET}[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure",
        rf"{_RAYLET}System memory low at node",
        r"^Memory on the node \(IP: .*which exceeds the memory usage threshold",
        rf"{_SLURMD}Detected \d+ oom[_-]kill event",
        rf"{_SLURMD}(?:Exceeded|Step \S+ exceeded|Job \S+ exceeded) .*memory limit",
        r"^srun: error: \S+: tasks? [\d,-]+: Out Of Memory",
        rf"{_KERNEL}(?:Memory cgroup out of memory|Out of memory): Kill(?:ed)? process \d+",
        rf"{_KERNEL}oom-kill:constraint=",
        rf"{_KERNEL}\S+ invoked oom-killer:",
        r"^what\(\): +std::bad_alloc",
    ),
    "disk-full": _any(
        rf"{_ERROR}(?:[Nn]o space left on device|[Dd]isk quota exceeded)",
        r"^[\w./-]+: .*: (?:No space left on device|Disk quota exceeded)$",
        r"^what\(\): +basic_ios::clear: (?:unspecified )?iostream",
    ),
    "port-taken": _any(
        rf"{_ERROR}(?:[Aa]ddress already in use|EADDRINUSE)",
        r"^none of the \d+ port blocks ",  # ports.py
        r"^(?:\[[^\]]*\] )?\S*: ?Check failed: .*(?:port|grpc server).*",
        rf"{_BRACKETS}Failed to start the grpc server\. The specified port is \d+",
        rf"{_BRACKETS}(?:\S+\.cc:\d+: +)?Failed to (?:bind to|listen on).*(?:port|address)",
    ),
    "verl-config": _any(
        r"^Could not (?:override|append to config|delete from config|find) ?'?",
        r"^Key '.*' is not in struct",
        r"^Error (?:merging override|parsing override|when composing)",
        r"^In '.*': (?:Could not find|ValidationError|ConfigAttributeError|.*Error raised)",
        r"^(?:Cannot find primary config|Primary config|Missing mandatory value|Multiple values for )",
        r"^(?:no viable alternative|mismatched input|extraneous input|token recognition error)\b",
        r"^error: (?!unreadable|engine-version|stack-package)[a-z][\w-]+: .*; ",  # launch.engines.verify
    ),
    "gpu-unusable": _any(
        rf"{_KERNEL}NVRM: (?:Xid|GPU .* has fallen off the bus)",
        r"^(?:Failed to initialize NVML|Unable to determine the device handle for GPU|NVIDIA-SMI has failed)",
    ),
    "permission-denied": _any(
        rf"{_ERROR}[Pp]ermission denied", r"^(?:[\w./-]+: )+(?:line \d+: )?\S+: Permission denied$"
    ),
    "missing-path": _any(
        rf"{_ERROR}(?:could not open image|{_NO_FILE})",
        rf"^FATAL: +.*(?:could not open image|{_NO_FILE}|doesn't exist in container)",
        r"can't open file '.*': \[Errno 2\]",
        r"^(?:bash|sh|env|exec|srun|python3?|/\S+): .*: No such file or directory$",
        r"^(?:\S+: )?no .+ on this node\b|^image .+ is not readable on ",  # the script's own checks
    ),
    "image": _any(r"^error: stack-package: "),  # launch.engines.verify
    "import-error": _any(
        r"^error: engine-version: ",
        r"^\S*python\S*: (?:Error while finding module specification|No module named)",
        r"^(?:\S+: )?error while loading shared libraries: ",
    ),
    "wall-time": _any(rf"{_SLURMD}\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO TIME LIMIT"),
    "nccl": _any(
        rf"{_BRACKETS}.*caught collective operation timeout: Work",
        rf"{_BRACKETS}.*NCCL watchdog thread terminated with exception",
        r"^what\(\): .*NCCL",
        r"^nccl(?:System|Remote|Internal|UnhandledCuda|InvalidUsage)Error: ",
        r"^(?:\[[^\]]*\] )?[\w.-]+:\d+:\d+ \[\d+\] (?:.* )?NCCL WARN ",
    ),
    "ray-node-lost": _any(
        r"^The node with node id: \S+ and address: .* has been marked dead",
        r"^(?:\[[^\]]*\] )?(?:\(raylet\) )?Raylet is terminated\.",
        r"^\S+ \S+ ERR scripts\.py:\d+ -- (?:raylet|gcs_server|\w+) *\[exit code=",  # of `ray start --block`
        r"^(?:\[[^\]]*\] )?.*(?:The raylet exited|Failed to connect to GCS|GCS may have died)",
    ),
    "worker-died": _any(r"^A worker died or was killed while executing a task by an unexpected system error"),
}

# An exception of these is how one process learns of the end of another.
CONSEQUENCE = _any(
    r"\b(?:Ray\w*Error|RaySystemError|ObjectLostError|GetTimeoutError|TaskCancelledError|RpcError)\b",
    r"\b(?:ActorDiedError|ActorUnavailableError|WorkerCrashedError|OwnerDiedError|NodeDiedError)\b",
    r"\bConnection(?:Refused|Reset|Aborted)?Error\b|\bBrokenPipeError\b|\bServerDisconnectedError\b|\bClient\w*Error\b",
    r"^(?:\w+\.)*(?:EOFError|SystemExit|KeyboardInterrupt|CancelledError|TimeoutError|BrokenProcessPool)\b",
    r"\bEngineDeadError\b|Engine core initialization failed|See root cause above|Rank \d+ scheduler is dead",
    r"Connection refused|Connection reset by peer|Connection closed by peer|Broken pipe|[Tt]imed out|\bdied\b",
    r"server process .*(?:terminated|exited|died)|Initialization failed\. Please see the error messages above",
)
# These end a process whatever it does, so that an error of another name may be theirs.
CATASTROPHES = ("cuda-out-of-memory", "out-of-memory", "disk-full", "gpu-unusable")


def raised_kind(text: str) -> Optional[str]:
    """The kind that the first line of an exception shows, roots before links; None for any other exception."""
    return _kind(RAISED, text)


def said_kind(text: str) -> Optional[str]:
    """The kind of a line that a program prints when it gives up; None for any other line."""
    return _kind(SAID, text)


def _kind(patterns: Dict[str, Pattern[str]], text: str) -> Optional[str]:
    order: Tuple[str, ...] = (*ROOTS, "wall-time", *LINKS)
    return next((kind for kind in order if kind in patterns and patterns[kind].search(text)), None)

"""Logs of trainers as verl 0.9, Ray 2.60 and torch write them, put together from real texts."""

# ruff: noqa: E501  real lines of logs are long

RUNNER = "\x1b[36m(TaskRunner pid=4030)\x1b[0m "
WORKER = "\x1b[36m(WorkerDict pid=5101, ip=10.0.2.101)\x1b[0m "
OTHER = "\x1b[36m(WorkerDict pid=5102, ip=10.0.2.102)\x1b[0m "
RAYLET = "\x1b[33m(raylet, ip=10.0.2.101)\x1b[0m "

START = f"""\
2026-11-29 21:58:58,369\tINFO worker.py:1832 -- Connecting to existing Ray cluster at address: 10.0.2.100:10003...
{RUNNER}TaskRunner hostname: n1, PID: 4030
{RUNNER}{{'actor_rollout_ref': {{'actor': {{'on_error': 'raise', 'strategy': 'megatron'}}}}}}
{RUNNER}/usr/lib/python3/torch/utils.py:12: FutureWarning: this will raise an error: RuntimeError: out of memory
{RUNNER}Filtering prompts longer than 512 tokens: 100%|##########| 7473/7473 [00:02<00:00, 3181.66 examples/s]
{RUNNER}Size of train dataloader: 29, Size of val dataloader: 1
{RUNNER}Total training steps: 435
n1:5101:5230 [0] NCCL INFO Bootstrap: Using ib0:10.0.2.101<0>
n1:5101:5230 [0] transport/net_ib.cc:295 NCCL WARN NET/IB : Unable to open device mlx5_bond_0
{WORKER}WARNING 11-29 22:00:12 [topk.py:8] ImportError: cannot import name 'topk' from 'kernels'; using torch
{WORKER}Traceback (most recent call last):
{WORKER}  File "/opt/flash/__init__.py", line 3, in <module>
{WORKER}    import flash_attn_3
{WORKER}ModuleNotFoundError: No module named 'flash_attn_3'
{WORKER}falling back to flash_attn 2
""" + "".join(
    f"{WORKER}INFO:2026-11-29 22:01:{second:02}:loading shard {second} of 25\n" for second in range(1, 26)
)


def steps(count: int, first: int = 1) -> str:
    """`count` steps of a healthy run, with what a model may answer and what is retried and survived."""
    return "".join(
        f"""\
{RUNNER}[prompt] system
{RUNNER}You are a helpful assistant.
{RUNNER}[response] When training fails, Python prints
{RUNNER}Traceback (most recent call last):
{RUNNER}  File "train.py", line 1, in <module>
{RUNNER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
{RUNNER}slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.
{RUNNER}[ground_truth] 42
{RUNNER}[score] 0.0
{WORKER}reward request failed (ConnectionRefusedError: [Errno 111] Connection refused), retry 1 of 8
{RAYLET}[2026-11-29 22:10:00,000 E 901 950] (raylet) file_system_monitor.cc:116: /tmp/ray is over 95% full
Training Progress:  {number}%|#         | {number}/435 [10:00<99:00, 60.0s/it]
{RUNNER}step:{number} - critic/score/mean:0.5 - actor/error=1:1 - timing_s/step:60.0 - perf/throughput:900.0
"""
        for number in range(first, first + count)
    )


def raised_in_worker(exception: str, method: str = "actor_rollout_update_actor") -> str:
    """An exception of a worker as the driver shows it at its end; may have several lines."""
    return f"""\
Error executing job with overrides: ['trainer.nnodes=2', 'data.train_files=/data/train.parquet']
Traceback (most recent call last):
  File "/opt/verl/trainer/main_ppo.py", line 45, in main
    run_ppo(config)
  File "/opt/ray/_private/worker.py", line 2961, in get
    values, debugger_breakpoint = worker.get_objects(
                                  ^^^^^^^^^^^^^^^^^^^
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError({exception.partition(":")[0].rpartition(".")[2]}): \x1b[36mray::TaskRunner.run()\x1b[39m (pid=4030, ip=10.0.2.100, repr=<main_ppo.TaskRunner object at 0x7123673b92b0>)
           ^^^^^^^^^^^^^^^^^^^
  File "/opt/verl/trainer/ppo/ray_trainer.py", line 901, in fit
    actor_output = self.actor_rollout_wg.update_actor(batch)
ray.exceptions.RayTaskError({exception.partition(":")[0].rpartition(".")[2]}): \x1b[36mray::WorkerDict.{method}()\x1b[39m (pid=5101, ip=10.0.2.101)
  File "/opt/verl/single_controller/ray/base.py", line 708, in func
    return getattr(self.worker_dict[key], name)(*args, **kwargs)
{exception}

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""


ACTOR_DIED = raised_in_worker(
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict\n"
    "\tactor_id: cca9abd56150bb7e65d2a0ff01000000\n\tpid: 5102\n\tname: gxgUtgWorkerDict_0:1\n"
    "\tnamespace: 72cc05c9-83ea-4daa-82b9-827ef180c315\n\tip: 10.0.2.102\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
    "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the "
    "process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the "
    "worker crashed unexpectedly due to SIGSEGV or another unexpected error."
)
WORKER_DIED = (
    f"{RAYLET}A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the "
    "problem, check the logs for the dead worker. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process "
    "was killed by the OOM killer due to high memory usage\n"
)
NCCL_NOISE = f"""\
{OTHER}[rank3]:[E1129 22:40:00.123456789 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.
{OTHER}[rank3]:[E1129 22:40:00.123999999 ProcessGroupNCCL.cpp:681] [Rank 3] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
{OTHER}terminate called after throwing an instance of 'c10::DistBackendError'
{OTHER}  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] NCCL watchdog thread terminated with exception: [Rank 3] Watchdog caught collective operation timeout
{OTHER}*** SIGABRT received at time=1764448800 on cpu 3 ***
"""
GOODBYE = f"""\
{OTHER}Exception ignored in: <function ResourceTracker.__del__ at 0x7fa19867d940>
{OTHER}Traceback (most recent call last):
{OTHER}  File "/usr/lib/python3.12/multiprocessing/resource_tracker.py", line 84, in __del__
{OTHER}FileNotFoundError: [Errno 2] No such file or directory: '/psm_1a2b3c'
{WORKER}/usr/lib/python3.12/multiprocessing/resource_tracker.py:279: UserWarning: There appear to be 1 leaked semaphores
[rank0]:[W1129 22:41:00.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called
"""


def in_worker(exception: str, worker: str = WORKER) -> str:
    """A traceback in the output of a worker."""
    return f"""\
{worker}Traceback (most recent call last):
{worker}  File "/opt/verl/workers/actor/megatron_actor.py", line 512, in forward_backward_batch
{worker}    losses_reduced = forward_backward_func(
{worker}                     ^^^^^^^^^^^^^^^^^^^^^^
{worker}{exception}
"""


RAYLET_KILLED = """\
2026-11-29 22:11:15,720\tERR scripts.py:1307 -- \x1b[31mSome Ray subprocesses exited unexpectedly:\x1b[39m
2026-11-29 22:11:15,720\tERR scripts.py:87 -- \x1b[31m\x1b[1mraylet\x1b[22m\x1b[26m\x1b[39m\x1b[0m\x1b[2m [exit code=-9]\x1b[22m\x1b[0m
2026-11-29 22:11:15,721\tERR scripts.py:115 -- \x1b[31m----- BEGIN raylet.out tail (exit code(s)=-9 (signal 9)) -----\x1b[39m
2026-11-29 22:11:15,723\tERR scripts.py:1315 -- \x1b[31mRemaining processes will be killed.\x1b[39m
"""

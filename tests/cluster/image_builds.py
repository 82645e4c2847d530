"""Images that tests build on the login node with singularity.build, as alice."""

import functools

from harness import CHECKOUT, IMAGE, Cluster, Done

from singularity.toolkit import content_hash

PRESENT = "/scratch/img/present.sif"
BUILD_S = 1200  # unpacking and packing the cluster's image, on cores that do other things


def build(
    cluster: Cluster, *options: str, environment: dict[str, str] | None = None, timeout_s: float = BUILD_S
) -> Done:
    """Run `python3 -m singularity.build --stack cpu` in the checkout; nothing is checked."""
    variables = [f"{name}={value}" for name, value in (environment or {}).items()]
    words = ["sh", "-c", 'cd "$0" && exec env "$@"', CHECKOUT, *variables]
    command = ["python3", "-m", "singularity.build", "--stack", "cpu", "--mksquashfs-args", "-comp lz4", *options]
    return cluster.on("login", *words, *command, check=False, timeout_s=timeout_s)


@functools.cache
def present_image(cluster: Cluster) -> tuple[str, Done]:
    """An image with this checkout's toolkit, made from the cluster's image, and what its build said.

    Its environment is poisoned: passwords that must not be kept, and a Python of the host.
    """
    environment = {
        "PIP_INDEX_URL": "http://robot:s3cr3t-index@index.invalid/simple",
        "http_proxy": "http://robot:s3cr3t-proxy@proxy.invalid:3128",
        "PIP_TARGET": "/nonexistent/target",
        "PYTHONPATH": f"{CHECKOUT}:/nonexistent/host",
        "VIRTUAL_ENV": "/nonexistent/venv",
        "CONDA_PREFIX": "/nonexistent/conda",
        "APPTAINERENV_PYTHONPATH": "/nonexistent/job",
        "APPTAINER_BINDPATH": "/nonexistent/data",
    }
    content_hash()  # kept for the process: of the files that are built in now
    done = build(cluster, "--from", f"localimage://{IMAGE}", "--force", "-o", PRESENT, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return PRESENT, done

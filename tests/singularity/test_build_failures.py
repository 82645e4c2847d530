"""What the end of a failed build's output is taken for."""

from pathlib import Path

import pytest

from singularity.failures import Places, explain

_RETRY = (
    "WARNING: Retrying (Retry(total={}, connect=None)) after connection broken by 'NewConnectionError('<x>: Failed"
    " to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/x/"
)
_NO_EVENT = "ERROR  : Error while waiting event for user namespace mappings: no event received"
_UNPACKING = "FATAL: packer failed to pack: while unpacking tmpfs: error unpacking rootfs: "
_PIP = (
    "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by '{}': /simple/torch/\n"
    "ERROR: No matching distribution found for torch==2.9\n"
    "launcher: build: torch cannot be installed; see pip above"
)
_UNKNOWN_OPTION = (
    'Error for command "build": unknown flag: --x\n\nOptions for build command:\n\n'
    "Run 'singularity build --help' for more detailed usage information.\n"
)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("FATAL: write /big/x: disk quota exceeded", ("your quota is used up", "/big (5 GB)")),
        ("Write failed because No space left on device\nFATAL", ("a file system is full", "-o", "--cache-dir")),
        ("ERROR: [Errno 28] No space left\nlauncher: build: torch cannot be", ("a file system is full",)),
        ("toomanyrequests: You have reached", ("docker://base:tag", "Wait six hours")),
        ("reading manifest x in docker.io/verlai/verl: manifest unknown", ("there is no docker://base:tag",)),
        ("unauthorized: authentication required", ("wants a login", "apptainer registry login docker://HOST")),
        ('Get "https://x/v2/": dial tcp: lookup x: no such host', ("no way from this machine", "--wheels")),
        ("launcher: build: the base has no python3\nFATAL: %post", ("the base has no python3",)),
        ("FATAL: 'noexec' mount option set on /tmp, temporary root", ("/tmp, mounted noexec", "--tmp-dir")),
        ("could not use fakeroot: no mapping entry found for alice", ("without root here", "--add alice")),
        ("FATAL: failed to execute %test script: exit status 1", ("fails its own test",)),
        (_RETRY.format(4) + "\nlauncher: build: a package of the base changed; see above", ("a package of the",)),
        (_RETRY.format(4) + "\nlauncher: build: x cannot be installed; see pip above", ("x cannot be installed",)),
        (_RETRY.format(0) + "\nlauncher: build: x cannot be installed; see pip above", ("no way from this",)),
        ("ERROR: no matching distribution found for a\nERROR: No matching distribution found for b", ("for b: ",)),
        ("ERROR  : Failed to create container process: No space left on device", ("user.max_user_names",)),
        ("ERROR  : Failed to create user namespace: No space left on device", ("not a full disk",)),
        ('Get "https://x.example/v2/": Proxy Authentication Required', ("user and a password: http_proxy=",)),
        (_PIP.format("ProxyError('x', OSError('Tunnel connection failed: 407 Proxy Authentication Required'))"),
         ("407 Proxy Authentication Required: the proxy wants",)),
        ("ERROR  : Could not write info to setgroups: Permission denied\n" + _NO_EVENT,
         ("setgroups: Permission denied: ", "AppArmor")),
        (_NO_EVENT, ("without root here",)),
        ("ERROR  : Failed to create mount namespace: mount namespace requires privileges, check", ("AppArmor",)),
        (_UNPACKING + "mkdir rootfs: mkdir /nfs/rootfs: no such file or directory", ("in /tmp.", "--tmp-dir")),
        (_UNPACKING + "unpack layer: unpack entry: root/.bashrc: create regular: open /s/root: permission denied",
         ("local disk with --tmp-dir",)),
        ("runtime: failed to create new OS thread (have 7 already; errno=11)\nfatal error: newosproc",
         ("newosproc: this machine limits", "alice (ulimit -u)")),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 5: Resource temporarily unavailable",
         ("ulimit -u",)),
        ("FATAL ERROR: Failed to create thread\n", ("ulimit -u",)),
        ("FATAL: tls: x509: certificate signed by unknown authority", ("SSL_CERT_FILE",)),
        (_PIP.format("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify"
                     " failed: self-signed certificate in certificate chain (_ssl.c:1000)'))"),
         ("certificate chain: the certificate of", "PIP_CERT")),
        ("FATAL: reading blob x: context deadline exceeded (Client.Timeout or context)", ("run it again",)),
        ("FATAL: conveyor failed to get: copying: unexpected EOF", ("run it again",)),
        ("/.post: line 3: unexpected EOF while looking for matching `\"'", ("ended with 255",)),
        ("FATAL: received unexpected HTTP status: 503 Service Unavailable", ("run it again",)),
        ("Err:1 http://x.example sid InRelease\n  503  Service Unavailable [IP: 1.2.3.4 80]", ("run it again",)),
        (_PIP.format("ReadTimeoutError('x: Read timed out. (read timeout=15)')"), ("Read timed out.", "run it")),
        (_PIP.format("ProtocolError('Connection aborted.', RemoteDisconnected('x'))"), ("run it again",)),
        (_UNKNOWN_OPTION, ("another command line: unknown flag: --x;",)),
        ("signal: killed", ("memory", "srun")),
        ("/.post: line 9: 31 Killed  pip\nlauncher: build: x failed; see pip above", ("31 Killed", "of memory")),
        ("note: avoids CUDA out of memory\nFATAL: something new", ("apptainer ended with 255: FATAL",)),
        ("FATAL: something new\n\n", ("apptainer ended with 255: FATAL: something new",)),
        ("", ("apptainer ended with 255: it said nothing",)),
    ],
)  # fmt: skip
def test_what_the_end_of_a_build_means(said: str, words: tuple[str, ...]) -> None:
    places = Places(
        Path("/big"), Path("/tmp"), Path("/home/alice/.apptainer"), "docker://base:tag", "apptainer",
        "apptainer registry login", "alice",
        lambda folder: "5 GB",
    )  # fmt: skip
    told = explain(said, 255, places)
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "apptainer ended with 0 and made no image"),
        (-15, "apptainer was ended by SIGTERM"),
        (-9, "apptainer was ended by SIGKILL"),
        (137, "apptainer was ended by SIGKILL"),
    ],
)
def test_how_a_program_ended(code: int, words: str) -> None:
    places = Places(
        Path("/b"), Path("/t"), Path("/c"), "docker://b", "apptainer", "apptainer registry login", "alice", str
    )
    told = explain("INFO: Starting build\n", code, places)
    assert words in told
    assert "Starting build" in told
    assert ("login nodes limit memory and time" in told) == (code != 0)

"""Labels that singularity.build gives an image, which tell what it is without running it."""

STACK = "launcher.stack"
STACK_CONTENT = "launcher.stack.content"  # Stack.content when it was built
VERSION = "launcher.version"  # of the toolkit
TOOLKIT = "launcher.toolkit"  # singularity.toolkit.content_hash() of the toolkit inside
BUILT = "launcher.built"  # ISO 8601, UTC
PACKAGE = "launcher.package."  # followed by a distribution's normalised name: its version inside

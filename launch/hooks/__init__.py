"""What verl loads by VERL_USE_EXTERNAL_MODULES, where a version lacks something that the job needs."""

"""One hook script as a process: what it is given, and how it is started, watched and ended.

`arguments` and `environment` make what it is given, `process` starts it below the spawner and follows it,
`pid_files` are how a background hook is found again, and `lifecycle` names its states. Begin with
`process`."""

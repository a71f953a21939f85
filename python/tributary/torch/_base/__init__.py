"""Ground of all other rooms: the log, messages, exceptions, how the process was launched, signals, state as bytes."""

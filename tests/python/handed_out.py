"""Where in a pass no signal can fall."""

import dis

from lossfeed._loader.epoch_pass import Pass


def after_the_store():
    """The instructions between the store that hands a batch out and the end of the return. Python looks for signals at
    calls and at the beginnings of functions and loops: never there."""
    instructions = list(dis.get_instructions(Pass.__next__))
    names = [f"{i.opname} {i.argval}" for i in instructions]
    store = names.index("STORE_ATTR handed_out")
    end = next(n for n in range(store, len(names)) if names[n].startswith("RETURN_VALUE"))
    assert not any(word in name for name in names[store : end + 1] for word in ("CALL", "JUMP", "RESUME"))
    return {i.offset for i in instructions[store + 1 : end + 1]}


#: By their place in ``Pass.__next__``.
HANDED_OUT = after_the_store()

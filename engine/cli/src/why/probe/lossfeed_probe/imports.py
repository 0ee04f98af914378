"""Changes to modules, made when the program imports them."""

import importlib
import importlib.abc
import importlib.util
import sys


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: modules that others find are changed after they ran."""

    def __init__(self, changes, package):
        self._changes, self._package = changes, package
        self._asking = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self._changes or name in self._asking:
            return None
        self._asking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.discard(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.change(name, module)

        spec.loader.exec_module = exec_module
        return spec

    def change(self, name, module):
        """Makes the change that belongs to a module; one that fails leaves the module as it was."""
        where, function = self._changes[name]
        try:
            getattr(importlib.import_module(f"{self._package}.{where}"), function)(module)
        except Exception as error:
            sys.stderr.write(f"lossfeed why: {name} cannot be measured: {error!r}\n")


def when_imported(changes, package):
    """Installs the finder; `package`, whose files make the changes, stays importable without its folder on the path."""
    finder = _Finder(changes, package)
    for where in {where for where, _ in changes.values()}:
        importlib.import_module(f"{package}.{where}")
    sys.meta_path.insert(0, finder)

"""A wheel with programs and libraries: of one platform, and for every Python 3. All else is in pyproject.toml."""

from __future__ import annotations

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformDistribution(Distribution):
    """Goes where files of a platform go, though no module of it is compiled."""

    def has_ext_modules(self) -> bool:
        return True


class AnyPythonWheel(bdist_wheel):
    """The library is loaded with ctypes, so that no Python's ABI is in the tag."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=PlatformDistribution, cmdclass={"bdist_wheel": AnyPythonWheel})

"""The files by which stores and package managers know a release, made from pyproject.toml and the built files:

    python packaging/release_files.py FOLDER --base URL --sdist FILE [--windows ZIP]

writes a Homebrew formula and, for a Windows build, winget's three manifests and scoop's one; and for Linux desktops the
.desktop entry and the AppStream metainfo. base: the address under which the files of this release can be fetched.
Digests are those of the files that are given, so nothing is written that does not belong to a build.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
ID = "io.github.sapo_desktop"
WINGET = "SapoDesktop.SapoDesktop"
PYTHON = "3.12"


def project() -> dict[str, object]:
    """[project] of pyproject.toml."""
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def program() -> str:
    """The one entry point."""
    scripts = project()["scripts"]
    assert isinstance(scripts, dict)
    (name,) = scripts
    return str(name)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def desktop_entry() -> str:
    return "\n".join(
        [
            "[Desktop Entry]",
            "Type=Application",
            "Version=1.5",
            f"Name={program()}",
            f"Comment={project()['description']}",
            f"Exec={program()}",
            f"TryExec={program()}",
            "Terminal=true",
            "Categories=Science;ArtificialIntelligence;ConsoleOnly;",
            "Keywords=reinforcement learning;language model;swarm;",
            "",
        ]
    )


def metainfo(date: str) -> str:
    """AppStream. date: of the release, YYYY-MM-DD."""
    root = ElementTree.Element("component", type="console-application")
    for tag, text in (
        ("id", ID),
        ("name", program()),
        ("summary", "Train a small language model on your laptop"),
        ("metadata_license", "CC0-1.0"),
        ("project_license", str(project()["license"])),
    ):
        ElementTree.SubElement(root, tag).text = text
    paragraph = ElementTree.SubElement(ElementTree.SubElement(root, "description"), "p")
    paragraph.text = str(project()["description"])
    ElementTree.SubElement(root, "launchable", type="desktop-id").text = f"{ID}.desktop"
    ElementTree.SubElement(ElementTree.SubElement(root, "provides"), "binary").text = program()
    ElementTree.SubElement(ElementTree.SubElement(root, "releases"), "release", version=version(), date=date)
    ElementTree.SubElement(root, "content_rating", type="oars-1.1")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def version() -> str:
    return str(project()["version"])


def formula(base: str, sdist: Path) -> str:
    """Homebrew: an environment of its own, filled by pip with the locked dependencies of the source archive."""
    return f"""\
class SapoDesktop < Formula
  desc "{_summary()}"
  homepage "{base}"
  url "{base}/{sdist.name}"
  sha256 "{sha256(sdist)}"
  license "{project()["license"]}"

  depends_on "python@{PYTHON}"

  def install
    python = Formula["python@{PYTHON}"].opt_bin/"python{PYTHON}"
    system python, "-m", "venv", libexec
    system libexec/"bin/pip", "install", "--require-hashes", "-r", "packaging/requirements.lock"
    system libexec/"bin/pip", "install", "--no-deps", "."
    bin.install_symlink libexec/"bin/{program()}"
    (bash_completion/"{program()}").write Utils.safe_popen_read(bin/"{program()}", "--print", "bash")
    (zsh_completion/"_{program()}").write Utils.safe_popen_read(bin/"{program()}", "--print", "zsh")
    (fish_completion/"{program()}.fish").write Utils.safe_popen_read(bin/"{program()}", "--print", "fish")
    (man1/"{program()}.1").write Utils.safe_popen_read(bin/"{program()}", "--print", "man")
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/{program()} --version")
  end
end
"""


def _summary() -> str:
    return "Train a small language model on your laptop, alone or in a swarm"


def scoop(base: str, windows: Path) -> str:
    return json.dumps(
        {
            "version": version(),
            "description": _summary(),
            "homepage": base,
            "license": project()["license"],
            "architecture": {"64bit": {"url": f"{base}/{windows.name}", "hash": sha256(windows)}},
            "extract_dir": program(),
            "bin": f"{program()}.exe",
        },
        indent=4,
    )


def winget(base: str, windows: Path) -> Iterator[tuple[str, str]]:
    """(file name, text) of the three manifests; their values are JSON, which YAML contains."""
    common = {"PackageIdentifier": WINGET, "PackageVersion": version()}
    kinds: dict[str, dict[str, object]] = {
        "": {"DefaultLocale": "en-US", "ManifestType": "version"},
        ".installer": {
            "InstallerType": "zip",
            "NestedInstallerType": "portable",
            "NestedInstallerFiles": [
                {"RelativeFilePath": f"{program()}\\{program()}.exe", "PortableCommandAlias": program()}
            ],
            "Installers": [
                {
                    "Architecture": "x64",
                    "InstallerUrl": f"{base}/{windows.name}",
                    "InstallerSha256": sha256(windows).upper(),
                }
            ],
            "ManifestType": "installer",
        },
        ".locale.en-US": {
            "PackageLocale": "en-US",
            "Publisher": "The sapo-desktop authors",
            "PackageName": program(),
            "License": project()["license"],
            "ShortDescription": _summary(),
            "ManifestType": "defaultLocale",
        },
    }
    for suffix, fields in kinds.items():
        lines = {**common, **fields, "ManifestVersion": "1.6.0"}
        yield f"{WINGET}{suffix}.yaml", "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())


def files(base: str, sdist: Path, windows: Path | None, date: str) -> Iterator[tuple[str, str]]:
    """(path, text) of everything."""
    yield f"linux/{ID}.desktop", desktop_entry()
    yield f"linux/{ID}.metainfo.xml", metainfo(date)
    yield f"homebrew/{program()}.rb", formula(base, sdist)
    if windows is not None:
        yield f"scoop/{program()}.json", scoop(base, windows)
        for name, text in winget(base, windows):
            yield f"winget/{name}", text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", required=True, help="such as https://example.org/releases/0.1.0")
    parser.add_argument("--sdist", type=Path, required=True)
    parser.add_argument("--windows", type=Path)
    parser.add_argument("--date", required=True, help="of the release, YYYY-MM-DD")
    args = parser.parse_args()
    for path, text in files(args.base.rstrip("/"), args.sdist, args.windows, args.date):
        target = args.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        print(target)


if __name__ == "__main__":
    main()

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zot.config.skills import Found, SkillFile, discover, load, manifest, parse, trust_hint
from zot.config.trust import TrustStore
from zot.errors import ConfigError

HEAD = "---\nname: brew\ndescription: How to brew.\n---\n"
OURS = "write-zot-extension"


def put(directory: Path, name: str, *, description: str = "What it does.", body: str = "Do it.\n") -> str:
    """Write a skill; return its directory."""
    (directory / name).mkdir(parents=True)
    (directory / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n\n{body}")
    return str(directory / name)


@pytest.mark.parametrize(
    ("head", "skill"),
    [
        ("name: brew\ndescription: How to brew.", SkillFile("brew", "How to brew.", "Body.")),
        ("name:   brew\ndescription: a: b # c", SkillFile("brew", "a: b", "Body.")),
        ("name: brew # the name\ndescription: C# and C#2", SkillFile("brew", "C# and C#2", "Body.")),
        ('name: brew\ndescription: "a # b"', SkillFile("brew", "a # b", "Body.")),
        ("name: 'brew' # it's\ndescription: \"a # b\" # c", SkillFile("brew", "a # b", "Body.")),
        ('name: brew\ndescription: "one\\ntwo\\tthree"', SkillFile("brew", "one\ntwo\tthree", "Body.")),
        ("name: brew\ndescription: >+ # folded\n  How to\n  # brew.", SkillFile("brew", "How to # brew.", "Body.")),
        ("name: brew\ndescription: |2\n  How to\n  brew.", SkillFile("brew", "How to\nbrew.", "Body.")),
        ('name: "brew"\ndescription: "say \\"hi\\": \\\\"', SkillFile("brew", 'say "hi": \\', "Body.")),
        ("name: 'brew'\ndescription: 'it''s'", SkillFile("brew", "it's", "Body.")),
        ("name: brew\ndescription: >\n  How to\n  brew.", SkillFile("brew", "How to brew.", "Body.")),
        ("name: brew\ndescription: >-\n  How to\n  brew.", SkillFile("brew", "How to brew.", "Body.")),
        ("name: brew\ndescription: |\n  How to\n  brew.", SkillFile("brew", "How to\nbrew.", "Body.")),
        ("name: brew\ndescription: How to\n  brew.", SkillFile("brew", "How to brew.", "Body.")),
        ("name: brew\ndescription:\n  How to brew.", SkillFile("brew", "How to brew.", "Body.")),
        (
            "# a comment\nname: brew\n\nlicense: MIT\nmetadata:\n  author: me\n  tags:\n    - x\ndescription: D",
            SkillFile("brew", "D", "Body."),
        ),
        *(
            (
                f"name: brew\ndescription: D\nallowed-tools:{tools}",
                SkillFile("brew", "D", "Body.", None, ("read", "bash")),
            )
            for tools in (
                " read, bash",
                " [read, bash]",
                " read bash",
                "\n  - read\n  - bash",
                "\n- read\n- bash",
                ' ["read", "bash"] # both',
                "\n  - 'read'\n  - \"bash\"",
            )
        ),
        (
            "name: brew\ndescription: D\nallowed-tools: bash(git add *), read",
            SkillFile("brew", "D", "Body.", None, ("bash(git add *)", "read")),
        ),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_skill_has_a_head_and_a_body(head: str, skill: SkillFile, line_end: str) -> None:
    text = f"---\n{head}\n---\n\nBody.\n".replace("\n", line_end)
    assert parse(text, "SKILL.md") == skill
    assert parse("\ufeff" + text, "SKILL.md") == skill


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "S.md:1: a skill begins with a line of three dashes"),
        ("# Brew\n", "S.md:1: a skill begins with a line of three dashes"),
        ("---\nname: brew\n", "S.md:3: the line of three dashes that ends the head is missing"),
        ("---\nname: brew\n---\n", "S.md:1: 'description' is missing"),
        ("---\ndescription: D\n---\n", "S.md:1: 'name' is missing"),
        ("---\nname: brew\ndescription: ''\n---\n", "S.md:3: 'description' is missing"),
        ("---\nname: brew\nhow to brew\n---\n", "S.md:3: expected `key: value`, not 'how to brew'"),
        ("---\n  name: brew\n---\n", "S.md:2: expected `key: value`, not 'name: brew'"),
        ("---\nname: brew\nname: stew\n---\n", "S.md:3: 'name' is repeated here"),
        (
            "---\n\nname: brew tea\ndescription: D\n---\n",
            "S.md:3: 'brew tea' is not a name of letters, digits, '.', '_' and '-'",
        ),
    ],
)
def test_a_broken_skill_is_reported_with_its_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as broken:
        parse(text, "S.md")
    assert str(broken.value) == told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "SKILL.md: No such file or directory"),
        (HEAD.encode() + b"caf\xe9\n", "SKILL.md:5: not UTF-8"),
        (HEAD.encode() + b"x" * 256 * 1024, "SKILL.md: larger than 262144 bytes"),
    ],
)
def test_a_file_that_is_not_a_skill_is_named(content: bytes | None, told: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "SKILL.md").write_bytes(content)
    with pytest.raises(ConfigError) as broken:
        load(str(tmp_path))
    assert str(broken.value) == f"{tmp_path}/{told}"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_endless_and_blocking_files_are_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "SKILL.md")
    with pytest.raises(ConfigError, match=r"/SKILL.md: (not a regular file|leads out of its directory)$"):
        load(str(tmp_path))


class Places:
    """The three places where a user's skills are."""

    def __init__(self, top: Path) -> None:
        self.cwd, self.home, self.given = top / "project", top / "home", top / "given"
        self.project, self.of_home = self.cwd / ".zot" / "skills", self.home / "skills"

    def discover(self, *explicit: str, trusted: bool = True) -> Found:
        return discover(cwd=str(self.cwd), home=str(self.home), explicit=explicit, is_trusted=lambda *_: trusted)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_without_any_skill_the_built_in_one_remains(places: Places) -> None:
    for found in (places.discover(), discover(cwd="/", home=None, is_trusted=lambda *_: False)):
        assert [(skill.name, skill.directory) for skill in found.skills] == [(OURS, None)]
        assert (found.untrusted, found.problems) == ((), ())


def test_the_first_skill_of_a_name_wins(places: Places) -> None:
    given = put(places.given, "a", description="given")
    put(places.project, "a", description="project")
    project = put(places.project, "b", description="project")
    put(places.of_home, "a", description="home")
    put(places.of_home, "b", description="home")
    home = put(places.of_home, "c", description="home")
    mine = put(places.of_home, OURS, description="mine")
    assert places.discover(given) == Found(
        (
            SkillFile("a", "given", "Do it.", given),
            SkillFile("b", "project", "Do it.", project),
            SkillFile("c", "home", "Do it.", home),
            SkillFile(OURS, "mine", "Do it.", mine),
        )
    )


def test_an_untrusted_project_offers_and_hides_nothing(places: Places) -> None:
    theirs = put(places.project, "deploy", description="theirs")
    (places.project / "broken").mkdir()
    (places.project / "broken" / "SKILL.md").write_text("not even read")
    mine = put(places.of_home, "deploy", description="mine")
    found = places.discover(trusted=False)
    assert [(skill.name, skill.directory) for skill in found.skills] == [("deploy", mine), (OURS, None)]
    assert found.untrusted == (str(places.project / "broken"), theirs)
    assert found.problems == ()


def test_trust_is_decided_for_each_directory_by_its_content(places: Places) -> None:
    one, two = put(places.project, "one"), put(places.project, "two")
    store = TrustStore(str(places.home))
    store.trust(one)
    store.trust(two)
    (Path(two) / "script.sh").write_text("echo malice")
    found = discover(cwd=str(places.cwd), home=None, is_trusted=store.is_trusted_skill)
    assert [skill.name for skill in found.skills] == ["one", OURS]
    assert found.untrusted == (two,)


def test_a_broken_skill_does_not_stop_the_others(places: Places) -> None:
    put(places.of_home, "good")
    (places.of_home / "bad").mkdir()
    (places.of_home / "bad" / "SKILL.md").write_text("---\nname: bad\n")
    (places.of_home / "no-skill").mkdir()
    (places.of_home / "README.md").write_text("hello")
    found = places.discover()
    assert [skill.name for skill in found.skills] == ["good", OURS]
    assert found.problems == (
        f"{places.of_home}/bad/SKILL.md:3: the line of three dashes that ends the head is missing",
    )


def test_an_unreadable_trust_store_is_a_problem_and_grants_no_trust(places: Places) -> None:
    put(places.project, "theirs")
    places.home.mkdir()
    (places.home / "trust.json").write_text("?")
    store = TrustStore(str(places.home))
    found = discover(cwd=str(places.cwd), home=None, is_trusted=store.is_trusted_skill)
    assert [skill.name for skill in found.skills] == [OURS]
    assert [problem.partition(" ")[0] for problem in found.problems] == [f"{places.home}/trust.json"]


def test_a_skills_directory_in_a_link_loop_is_a_problem(places: Places) -> None:
    places.project.parent.mkdir(parents=True)
    places.project.symlink_to("skills")
    found = places.discover()
    assert [skill.name for skill in found.skills] == [OURS]
    assert found.problems == (f"{places.project}: Too many levels of symbolic links",)


def test_the_hint_how_to_trust_can_be_copied_whatever_the_name() -> None:
    assert trust_hint("/p/deploy") == "to use it: zot skills trust /p/deploy"
    assert trust_hint("/p/x; rm -rf ~") == "to use it: zot skills trust '/p/x; rm -rf ~'"
    assert trust_hint("/p/x\nzot skills trust y") == (
        "its name has characters that cannot be seen; rename it before you trust it"
    )


def test_a_skill_named_by_the_user_must_exist(places: Places) -> None:
    with pytest.raises(ConfigError, match=r"/gone/SKILL.md: No such file or directory$"):
        places.discover(str(places.given / "gone"))


def test_the_manifest_has_a_line_for_each() -> None:
    skills = [
        SkillFile("brew", "How to\n  brew.", "Body.", "/skills/brew"),
        SkillFile("own", "x" * 1025, "Body."),
    ]
    assert manifest(skills) == (
        "Skills are instructions for special tasks. Load the right one with the skill tool before you begin.\n"
        "- brew [/skills/brew]: How to brew.\n"
        f"- own [builtin]: {'x' * 1024}..."
    )
    assert manifest([]) == ""

"""The commands as a user types them, run in this process."""

import json
from pathlib import Path

import pytest

from rpl.cli.main import COMMANDS, LIGHTNING_COMMANDS, main, run
from rpl.core.errors import CheckpointError, ConfigError, DataError
from rpl.core.records import Trace, from_dict

PROGRAM = "for p in bm25('Borders of Chad', k=1):\n    print(p)\n"
MINI = ["--corpus", "atlas-mini"]


def test_no_command_prints_usage_and_fails(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "usage: rpl COMMAND" in capsys.readouterr().out


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in LIGHTNING_COMMANDS | COMMANDS)


def test_unknown_command_is_refused_with_what_is_allowed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["fitt"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert "'fitt'" in err
    assert "cycle" in err


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"rpl {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["harvest", "ask", "exec", "cycle", "doctor"])
def test_help_describes_every_option(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    out = capsys.readouterr().out
    assert "(required" in out or command == "doctor"
    assert "YAML file of options" in out


def test_errors_of_ours_are_one_line_and_status_1(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["report", "/nowhere"])
    assert stop.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith("rpl: CheckpointError: /nowhere")
    assert "Traceback" not in err


def test_exec_prints_the_trace_as_json(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text("for p in bm25(question, k=2):\n    print(p)\n")
    run(["exec", str(program), "--question", "Which countries border Chad?", *MINI, "--json"])
    trace = from_dict(Trace, json.loads(capsys.readouterr().out))
    assert trace.error is None
    assert len(trace.printed_ids) == 2
    assert trace.calls[0].args["query"] == "Which countries border Chad?"


def test_exec_without_json_is_for_people(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    trace = run(["exec", str(program), "--question", "q", *MINI])
    out = capsys.readouterr().out
    assert "1 primitive call, " in out
    assert f"[{trace.printed_ids[0]}]" in out


def test_exec_shows_a_failed_program_as_data(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text("import os\n")
    trace = run(["exec", str(program), "--question", "q", *MINI])
    assert trace.error.kind == "forbidden"
    assert trace.error.line == 1
    assert "line 1" in capsys.readouterr().out


def test_exec_of_a_missing_file_names_it():
    with pytest.raises(DataError, match=r"nothing\.py: no such program file"):
        run(["exec", "nothing.py", "--question", "q"])


def test_ask_shows_what_the_policy_did(capsys):
    question = ["ask", "Which countries border Chad?", "--checkpoint", "tiny"]
    rollout = run([*question, *MINI, "--rollout.max_new_tokens", "8"])
    assert rollout.invalid is not None  # a random model answers nothing, and that is said
    assert f"no answer ({rollout.invalid})" in capsys.readouterr().out


def test_data_atlas_writes_both_files_and_never_over_others(tmp_path, capsys):
    run(["data", "atlas", "--out", str(tmp_path), "--name", "atlas-mini"])
    corpus, questions = str(tmp_path / "corpus.jsonl"), str(tmp_path / "questions.jsonl")
    result = run(["data", "check", "--corpus", corpus, "--questions", questions])
    assert result["questions"] == 100
    assert "100 of 100 questions with gold can be answered from this corpus" in capsys.readouterr().out
    with pytest.raises(DataError, match="exists already"):
        run(["data", "atlas", "--out", str(tmp_path), "--name", "atlas-mini"])


def test_data_check_names_file_line_and_field(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "title": "A", "text": "about a"}\n{"id": "b", "title": "B"}\n')
    with pytest.raises(DataError, match=r"corpus\.jsonl:2"):
        run(["data", "check", "--corpus", str(corpus)])


def test_data_check_finds_gold_that_is_not_in_the_corpus(tmp_path):
    corpus, questions = tmp_path / "corpus.jsonl", tmp_path / "questions.jsonl"
    corpus.write_text('{"id": "a", "title": "A", "text": "about a"}\n')
    questions.write_text('{"id": "q", "question": "What?", "answers": ["x"], "gold_docs": ["zzz"]}\n')
    with pytest.raises(DataError, match="zzz"):
        run(["data", "check", "--corpus", str(corpus), "--questions", str(questions)])


def test_index_of_a_users_corpus(tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        '{"id": "a", "title": "Owls", "text": "Owls hunt at night."}\n'
        '{"id": "b", "contents": "\\"Bees\\"\\nBees make honey."}\n'
    )
    run(["index", "build", str(corpus), "--out", str(tmp_path / "index")])
    run(["index", "check", str(tmp_path / "index")])
    assert "ok" in capsys.readouterr().out
    found = run(["index", "search", "honey", "--corpus", str(tmp_path / "index"), "--k", "1"])
    assert [p.id for p in found] == ["b"]


def test_doctor_tries_the_layers(capsys):
    findings = {f.layer: f for f in run(["doctor"])}
    assert findings["sandbox"].status == "ok"
    assert findings["bm25"].status == "ok"
    assert findings["sampler hf"].status == "ok"
    assert all(f.advice for f in findings.values() if f.status == "missing")


def test_report_of_a_folder_without_results_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="is this a run folder"):
        run(["report", str(tmp_path)])


def test_a_wrong_limit_names_its_key(tmp_path):
    program = tmp_path / "p.py"
    program.write_text(PROGRAM)
    with pytest.raises((ConfigError, SystemExit)):
        run(["exec", str(program), "--question", "q", "--environment.limits.fuel", "0", *MINI])


def test_harvest_with_the_tiny_model(tmp_path):
    out = tmp_path / "repairs.jsonl"
    args = ["--checkpoint", "tiny", "--out", str(out), "--questions", "atlas-mini", "--num_questions", "6"]
    args += ["--environment.library.corpus", "atlas-mini", "--harvest.num_samples", "1"]
    args += ["--harvest.max_new_tokens", "8", "--harvest.control_questions", "1"]
    summary = run(["harvest", *args])
    assert summary["questions"] == 6
    assert len(out.read_text().splitlines()) == 6
    assert json.loads(Path(tmp_path / "repairs.summary.json").read_text()) == summary


@pytest.mark.parametrize(
    ("question", "message"),
    [("", "is empty"), (" \n", "is empty"), ("\u200b", "is empty"), ("\udcff?", "not valid Unicode")],
)
def test_a_question_that_asks_nothing_is_refused_before_anything_is_loaded(question, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["ask", question, "--checkpoint", "there/is/none"])
    assert stop.value.code == 1
    assert message in capsys.readouterr().err


def test_a_program_that_is_no_text_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "program.py").write_bytes(b"print('\xff')")
    with pytest.raises(SystemExit) as stop:
        main(["exec", str(tmp_path / "program.py"), "--question", "q"])
    assert stop.value.code == 1
    assert "program.py: not a program in UTF-8" in capsys.readouterr().err

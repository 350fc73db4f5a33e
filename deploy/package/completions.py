#!/usr/bin/env python3
"""completions.py PROGRAM FOLDER: writes scripts that complete the program's
commands and options: FOLDER/NAME (bash), FOLDER/_NAME (zsh), FOLDER/NAME.fish.

Each script offers the subcommands and options of the innermost command that the
words before the cursor name.
"""

import os
import sys

import help_text


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def offered(command):
    """Yields (word, description) of each subcommand and option."""
    for child in command.children:
        yield child.words[-1], child.says
    for option in command.options:
        for name in option.names:
            yield name, option.says


def commands_below(command):
    return "|".join(quoted(each.name) for each in command.everything()[1:])


def walk(command, words):
    """Returns bash and zsh code that sets $at to the innermost command's
    name."""
    below = commands_below(command)
    step = f"""    case "$at $word" in
      {below}) at="$at $word" ;;
    esac""" if below else "    :"
    return f"""  local at={quoted(command.name)} word
  for word in {words}; do
{step}
  done"""


def bash(command):
    name = command.name.replace("-", "_")
    values = "|".join(
        quoted(f"{each.name} {option}") for each in command.everything()
        for entry in each.options if entry.takes_a_value
        for option in entry.names)
    cases = "\n".join(
        f"    {quoted(each.name)}) offered="
        f"{quoted(' '.join(word for word, _ in offered(each)))} ;;"
        for each in command.everything())
    return f"""_{name}() {{
{walk(command, '"${COMP_WORDS[@]:1:COMP_CWORD-1}"')}
  COMPREPLY=()
  case "$at ${{COMP_WORDS[COMP_CWORD-1]}}" in
    {values}) return ;;  # a value: files
  esac
  local offered=
  case $at in
{cases}
  esac
  mapfile -t COMPREPLY < <(compgen -W "$offered" -- \
"${{COMP_WORDS[COMP_CWORD]}}")
}}
complete -o default -F _{name} {command.name}
"""


def zsh(command):
    def lines(each):
        return " ".join(quoted(f"{word}:{says}") for word, says in
                        offered(each))
    cases = "\n".join(f"    {quoted(each.name)}) offered=({lines(each)}) ;;"
                      for each in command.everything())
    name = command.name.replace("-", "_")
    return f"""#compdef {command.name}
_{name}() {{
{walk(command, '"${(@)words[2,CURRENT-1]}"')}
  local -a offered
  case $at in
{cases}
  esac
  _describe -t commands {quoted(command.name)} offered || _files
}}
_{name} "$@"
"""


def fish(command):
    name = "__at_" + command.name.replace("-", "_")
    below = " ".join(quoted(each.name) for each in command.everything()[1:])
    lines = [f"""function {name}
  set -l at {quoted(command.name)}
  for word in (commandline -opc)[2..-1]
    if contains -- "$at $word" {below}
      set at "$at $word"
    end
  end
  test "$at" = "$argv"
end"""]
    for each in command.everything():
        here = f'complete -c {command.name} -n "{name} {each.name}"'
        for child in each.children:
            lines.append(f"{here} -f -a {child.words[-1]} -d "
                         f"{quoted(child.says)}")
        for option in each.options:
            flags = " ".join(
                f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}"
                for word in option.names)
            value = " -r" if option.takes_a_value else ""
            lines.append(f"{here} {flags}{value} -d {quoted(option.says)}")
    return "\n".join(lines) + "\n"


def main():
    program, folder = sys.argv[1:]
    command = help_text.read(program, [os.path.basename(program)])
    os.makedirs(folder, exist_ok=True)
    for file_name, text in ((command.name, bash(command)),
                            ("_" + command.name, zsh(command)),
                            (command.name + ".fish", fish(command))):
        path = os.path.join(folder, file_name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()

"""Rules that keep the code readable: a class is defined in one .cc, and
folders include each other in one direction only."""

import collections
import os
import re

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
NAMESPACE = re.compile(r"^namespace sluice::([\w:]+) \{", re.M)
METHOD = re.compile(
    r"^(?:\w[^\n;{}]*?(?<![\w:]))?([A-Z]\w+)::(?:\w+::)*~?\w+\(", re.M)


def product(files, ends):
    return {path: text for path, text in files.items()
            if path.endswith(ends) and not path.startswith("tests/")}


def check_classes(files):
    """Yields classes defined in several sources; files: {path: text} of C++
    sources and headers."""
    sources = collections.defaultdict(set)
    for path, text in product(files, ".cc").items():
        spaces = NAMESPACE.findall(text)
        for name in METHOD.findall(text):
            if spaces:
                sources[f"{spaces[0]}::{name}"].add(path)
    for name, paths in sorted(sources.items()):
        if len(paths) > 1:
            yield (f"{name} is defined in {', '.join(sorted(paths))}: a class "
                   "has one .cc, or it is two classes")


def folder_graph(files):
    folders = {os.path.dirname(path) for path in files}
    graph = collections.defaultdict(set)
    for path, text in files.items():
        own = os.path.dirname(path)
        graph[own] |= {os.path.dirname(header)
                       for header in INCLUDE.findall(text)} & folders - {own}
    return graph


def reachable(graph, start):
    seen, queue = set(), [start]
    while queue:
        for other in graph.get(queue.pop(), ()):
            if other not in seen:
                seen.add(other)
                queue.append(other)
    return seen


def check_circles(files):
    """Yields folders that include each other, directly or through others."""
    graph = folder_graph(product(files, (".cc", ".h", ".cu")))
    reached = {folder: reachable(graph, folder) for folder in list(graph)}
    circles = {frozenset(other for other in reached[folder]
                         if folder in reached.get(other, ()))
               for folder in reached if folder in reached[folder]}
    for circle in sorted(sorted(circle) for circle in circles):
        yield (f"{', '.join(circle)} include each other in a circle: "
               "includes between folders have one direction")

// Text of strangers inside text for people.
//
// Thread safety: pure functions.
#pragma once

#include <string>

namespace sluice {

// `text` with each control character replaced by '?', so that it stays in its
// line and moves no cursor.
std::string Printable(std::string text);

// The same, no longer than a screen: for a complaint that quotes a file.
std::string PrintableLine(std::string text);

// Without its line break.
std::string FirstLine(const std::string& text);

// `word` as a shell reads it back: in single quotes where it must be. For
// commands that are printed to be run.
std::string ShellWord(const std::string& word);

}  // namespace sluice

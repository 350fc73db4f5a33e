// Text of strangers inside text for people.
//
// Thread safety: pure functions.
#pragma once

#include <string>

namespace sluice {

// `text` with '?' for each byte that is a control character's, or that makes no
// character of UTF-8: so it stays in its line, moves no cursor, and can be a
// string of a protobuf, where other bytes make the reader drop the packet.
std::string Printable(std::string text);

// The same, no longer than a screen: for a complaint that quotes a file.
std::string PrintableLine(std::string text);

// Without its line break.
std::string FirstLine(const std::string& text);

// `word` as a shell reads it back: in single quotes where it must be. For
// commands that are printed to be run.
std::string ShellWord(const std::string& word);

}  // namespace sluice

#include "proto/base/text.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(Printable, CharactersOfOneToFourBytesAreKept) {
  for (const std::string text : {"", "a b~", "é ß", "€ 流", "🌊", "\u00a0"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(Printable, ControlCharactersAreReplaced) {
  EXPECT_EQ(Printable("a\n\tb\x1b[1m\x7f"), "a??b?[1m?");
  // A terminal takes U+009B, which is two bytes in UTF-8, as the start of a
  // command.
  EXPECT_EQ(Printable("a\u009b1m\u0085"), "a??1m??");
  // U+202E turns round what follows: "kill 321" could be shown for "kill 123".
  EXPECT_EQ(Printable("a\u202eb\u2066\u2028"), "a???b??????");
}

// Guards against a text that is cut within a character. The reader of a packet
// with such a text ends the session.
TEST(Printable, InvalidUtf8IsReplacedByteByByte) {
  EXPECT_EQ(Printable("\xff\xfe"), "??");
  EXPECT_EQ(Printable("cut \xe2\x82"), "cut ??");
  EXPECT_EQ(Printable("\xe2\x82z"), "??z");
  EXPECT_EQ(Printable("\xbf alone"), "? alone");
  EXPECT_EQ(Printable("\xc0\xaf"), "??") << "an overlong encoding";
  EXPECT_EQ(Printable("\xe0\x80\xaf"), "???") << "an overlong encoding";
  EXPECT_EQ(Printable("\xed\xa0\x80"), "???") << "half of a surrogate pair";
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "????") << "beyond U+10FFFF";
}

TEST(PrintableLine, ALongTextIsCutAndStaysValid) {
  std::string text = "x";
  while (text.size() < 3000) text += "é";
  const std::string line = PrintableLine(text);
  EXPECT_LT(line.size(), 1010u);
  EXPECT_TRUE(line.ends_with("é? ...")) << line.substr(990);
}

}  // namespace
}  // namespace sluice

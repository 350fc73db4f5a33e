#include "daemon/metrics/http_request.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

using Result = HttpReader::Result;

Result Read(std::string_view bytes) { return HttpReader().Take(bytes); }

Result ReadByteByByte(std::string_view bytes) {
  HttpReader reader;
  for (const char& byte : bytes) {
    Result result = reader.Take({&byte, 1});
    if (!std::holds_alternative<HttpReader::NeedsMore>(result)) return result;
  }
  return HttpReader::NeedsMore{};
}

// Also that bytes one by one get the same answer.
std::optional<HttpStatus> Refused(const std::string& bytes) {
  const Result whole = Read(bytes);
  const auto* refusal = std::get_if<HttpRefusal>(&whole);
  const Result slow = ReadByteByByte(bytes);
  const auto* same = std::get_if<HttpRefusal>(&slow);
  EXPECT_EQ(whole.index(), slow.index()) << bytes.substr(0, 100);
  if (refusal == nullptr || same == nullptr) return std::nullopt;
  EXPECT_EQ(refusal->status, same->status);
  EXPECT_FALSE(refusal->why.empty());
  EXPECT_EQ(refusal->why.find('\n'), std::string::npos);
  return refusal->status;
}

std::string Get(const std::string& headers = "") {
  return "GET /metrics HTTP/1.1\r\nHost: here\r\n" + headers + "\r\n";
}

TEST(HttpReader, TakesAGetAndAHeadWholeOrByteByByte) {
  for (const std::string method : {"GET", "HEAD"}) {
    const std::string bytes =
        method +
        " /status.json?pretty=1 HTTP/1.1\r\nhOsT: x\r\nA:\t b \r\n\r\n";
    for (const Result& result : {Read(bytes), ReadByteByByte(bytes)}) {
      const auto* request = std::get_if<HttpRequest>(&result);
      ASSERT_NE(request, nullptr);
      EXPECT_EQ(request->path, "/status.json");
      EXPECT_EQ(request->head, method == "HEAD");
    }
  }
}

TEST(HttpReader, WaitsForTheEmptyLine) {
  const std::string bytes = Get();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Result result = Read(bytes.substr(0, size));
    EXPECT_TRUE(std::holds_alternative<HttpReader::NeedsMore>(result)) << size;
  }
}

TEST(HttpReader, IgnoresWhatComesBehindTheRequest) {
  const Result result = Read(Get() + Get() + std::string(1000, '\0'));
  EXPECT_TRUE(std::holds_alternative<HttpRequest>(result));
}

TEST(HttpReader, RefusesWhatIsNoRequest) {
  for (const char* bytes :
       {"\r\n", "GET\r\n", "GET /\r\n", "GET / HTTP/1.0\r\n",
        "GET / HTTP/2\r\n", "GET metrics HTTP/1.1\r\n",
        "GET http:/h/metrics HTTP/1.1\r\n", "G(T / HTTP/1.1\r\n",
        "GET / HTTP/1.1\n", "GET /\x01 HTTP/1.1\r\n", "GET /a b HTTP/1.1\r\n",
        " / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nno header\r\n",
        "GET / HTTP/1.1\r\n: x\r\n", "GET / HTTP/1.1\r\na : x\r\n",
        "GET / HTTP/1.1\r\na: x\r\n folded\r\n",
        "GET / HTTP/1.1\r\na: \x7f\r\n", "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"}) {
    EXPECT_EQ(Refused(bytes), HttpStatus::kBadRequest) << bytes;
  }
  EXPECT_EQ(Refused(std::string("GET /\0 HTTP/1.1\r\n", 18)),
            HttpStatus::kBadRequest);
}

TEST(HttpReader, RefusesOtherMethodsBeforeTheirHeaders) {
  for (const std::string method : {"POST", "PUT", "DELETE", "get", "OPTIONS"}) {
    EXPECT_EQ(Refused(method + " /metrics HTTP/1.1\r\n"),
              HttpStatus::kMethodNotAllowed);
  }
}

TEST(HttpReader, RefusesEveryBody) {
  for (const char* header :
       {"Content-Length: 1\r\n", "content-length: 0, 0\r\n",
        "Content-Length: -0\r\n", "Content-Length:\r\n",
        "Transfer-Encoding: chunked\r\n", "TRANSFER-ENCODING: identity\r\n"}) {
    EXPECT_EQ(Refused(Get(header)), HttpStatus::kContentTooLarge) << header;
  }
  EXPECT_EQ(Refused(Get("Content-Length: 0\r\n")), std::nullopt);
}

TEST(HttpReader, BoundsTheRequestLineToTheByte) {
  const std::string ends = "GET / HTTP/1.1";
  const auto line = [&](size_t bytes) {
    return "GET /" + std::string(bytes - ends.size(), 'x') +
           " HTTP/1.1\r\nHost: h\r\n\r\n";
  };
  EXPECT_EQ(Refused(line(HttpReader::kMaxLineBytes)), std::nullopt);
  EXPECT_EQ(Refused(line(HttpReader::kMaxLineBytes + 1)),
            HttpStatus::kUriTooLong);
  EXPECT_EQ(Refused(std::string(1 << 20, 'x')), HttpStatus::kUriTooLong);
}

TEST(HttpReader, BoundsTheHeadersToTheByteAndTheirNumber) {
  const std::string fixed = "Host: here\r\n\r\n";
  const auto headers = [&](size_t bytes) {
    return "A:" + std::string(bytes - fixed.size() - 4, 'x') + "\r\n";
  };
  EXPECT_EQ(Refused(Get(headers(HttpReader::kMaxHeaderBytes))), std::nullopt);
  EXPECT_EQ(Refused(Get(headers(HttpReader::kMaxHeaderBytes + 1))),
            HttpStatus::kHeadersTooLarge);
  EXPECT_EQ(Refused("GET / HTTP/1.1\r\n" + std::string(1 << 20, 'x')),
            HttpStatus::kHeadersTooLarge);
  std::string many;
  for (size_t i = 1; i < HttpReader::kMaxHeaders; ++i) many += "A: b\r\n";
  EXPECT_EQ(Refused(Get(many)), std::nullopt);
  EXPECT_EQ(Refused(Get(many + "A: b\r\n")), HttpStatus::kHeadersTooLarge);
}

// However bytes are cut, the answer is the same, and it always comes within
// the bounds.
TEST(HttpReader, RandomBytesInRandomPiecesGetOneAnswer) {
  constexpr int kRounds = 20000;
  constexpr std::string_view kMarks = "\r\n\r\n: /?\tA\0\x7f\xff";
  std::mt19937 random(20261122);
  const auto below = [&](size_t n) { return random() % n; };
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = Get("Accept: */*\r\nContent-Length: 0\r\n");
    for (size_t edits = below(6); edits > 0; --edits) {
      const size_t at = below(bytes.size());
      const size_t count = below(4) == 0 ? below(3000) : 1;
      const char mark = kMarks[below(kMarks.size())];
      switch (below(3)) {
        case 0:
          bytes[at] = mark;
          break;
        case 1:
          bytes.insert(at, count, mark);
          break;
        default:
          bytes.erase(at, below(8));
      }
      if (bytes.empty()) bytes = "x";
    }
    const Result whole = Read(bytes);
    HttpReader reader;
    Result pieces = HttpReader::NeedsMore{};
    for (size_t at = 0;
         at < bytes.size() &&
         std::holds_alternative<HttpReader::NeedsMore>(pieces);) {
      const size_t size = std::min(bytes.size() - at, 1 + below(40));
      pieces = reader.Take(std::string_view(bytes).substr(at, size));
      at += size;
    }
    ASSERT_EQ(whole.index(), pieces.index()) << bytes;
    if (const auto* refusal = std::get_if<HttpRefusal>(&whole)) {
      ASSERT_EQ(refusal->status, std::get<HttpRefusal>(pieces).status);
    } else if (const auto* request = std::get_if<HttpRequest>(&whole)) {
      ASSERT_EQ(request->path, std::get<HttpRequest>(pieces).path);
      ASSERT_TRUE(request->path.starts_with('/'));
    } else {
      ASSERT_LE(bytes.size(),
                HttpReader::kMaxLineBytes + 2 + HttpReader::kMaxHeaderBytes);
    }
  }
}

TEST(HttpHead, SaysWhatFollowsAndThatTheConnectionCloses) {
  const std::string head = HttpHead(HttpStatus::kMethodNotAllowed, "a/b", 7);
  EXPECT_TRUE(head.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"));
  for (const char* line : {"Content-Type: a/b\r\n", "Content-Length: 7\r\n",
                           "Connection: close\r\n", "Allow: GET, HEAD\r\n"}) {
    EXPECT_NE(head.find(line), std::string::npos) << line;
  }
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  EXPECT_EQ(HttpHead(HttpStatus::kOk, "a/b", 7).find("Allow"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::daemon

#include "daemon/metrics/http_request.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

// Also that the answer is the same byte by byte.
std::optional<HttpStatus> Refused(const std::string& bytes) {
  const auto whole = ReadHttpRequest(bytes);
  auto slow = ReadHttpRequest({});
  for (size_t end = 1; slow.index() == 0 && end <= bytes.size(); ++end) {
    slow = ReadHttpRequest(std::string_view(bytes).substr(0, end));
  }
  EXPECT_EQ(whole.index(), slow.index()) << bytes.substr(0, 100);
  const auto* refusal = std::get_if<HttpRefusal>(&whole);
  if (refusal == nullptr) return std::nullopt;
  EXPECT_EQ(refusal->status, std::get<HttpRefusal>(slow).status);
  EXPECT_FALSE(refusal->why.empty());
  EXPECT_EQ(refusal->why.find('\n'), std::string::npos);
  return refusal->status;
}

TEST(HttpRequest, TakesAGetAndAHead) {
  for (const std::string method : {"GET", "HEAD"}) {
    for (const char* path :
         {"/status.json", "/status.json?pretty=1", "/status.json#x"}) {
      const auto read = ReadHttpRequest(method + " " + path +
                                        " HTTP/1.1\r\nhOsT: x\r\n\r\nmore");
      const auto* request = std::get_if<HttpRequest>(&read);
      ASSERT_NE(request, nullptr);
      EXPECT_EQ(request->path, "/status.json");
      EXPECT_EQ(request->head, method == "HEAD");
    }
  }
}

TEST(HttpRequest, WaitsForTheEmptyLine) {
  const std::string bytes = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto read = ReadHttpRequest(std::string_view(bytes).substr(0, size));
    EXPECT_TRUE(std::holds_alternative<HttpNeedsMore>(read)) << size;
  }
}

TEST(HttpRequest, RefusesWhatIsNoRequest) {
  for (const char* line :
       {"", "GET", "GET /", " ", "GET / HTTP/2", "GET  HTTP/1.1",
        "GET metrics HTTP/1.1", "GET http:/h HTTP/1.1"}) {
    EXPECT_EQ(Refused(std::string(line) + "\r\n\r\n"), HttpStatus::kBadRequest)
        << line;
  }
}

TEST(HttpRequest, RefusesOtherMethods) {
  for (const std::string method : {"POST", "PUT", "DELETE", "get", "OPTIONS"}) {
    EXPECT_EQ(Refused(method + " /metrics HTTP/1.1\r\n\r\n"),
              HttpStatus::kMethodNotAllowed);
  }
}

TEST(HttpRequest, IsBoundedToTheByte) {
  const std::string fixed = "GET / HTTP/1.1\r\nA: \r\n\r\n";
  const auto request = [&](size_t bytes) {
    return "GET / HTTP/1.1\r\nA: " + std::string(bytes - fixed.size(), 'x') +
           "\r\n\r\n";
  };
  EXPECT_EQ(Refused(request(kMaxHttpRequest)), std::nullopt);
  EXPECT_EQ(Refused(request(kMaxHttpRequest + 1)),
            HttpStatus::kHeadersTooLarge);
  EXPECT_EQ(Refused(std::string(1 << 16, 'x')), HttpStatus::kHeadersTooLarge);
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

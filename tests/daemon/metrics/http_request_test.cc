#include <optional>
#include <string>

#include "daemon/metrics/http_server.h"
#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

// Returns the status if the request is refused. Checks that the result is the
// same if the bytes come one by one.
std::optional<HttpStatus> Refused(const std::string& bytes) {
  const auto whole = ReadHttpRequest(bytes);
  auto slow = ReadHttpRequest({});
  for (size_t end = 1; !slow && end <= bytes.size(); ++end) {
    slow = ReadHttpRequest(std::string_view(bytes).substr(0, end));
  }
  EXPECT_EQ(whole.has_value(), slow.has_value()) << bytes.substr(0, 100);
  if (!whole || !slow || whole->status == kHttpOk) return std::nullopt;
  EXPECT_FALSE(whole->head) << "a refusal is sent with its body";
  EXPECT_EQ(whole->status, slow->status);
  EXPECT_FALSE(whole->why.empty());
  EXPECT_EQ(whole->why.find('\n'), std::string::npos);
  return whole->status;
}

TEST(HttpRequest, GetAndHeadAreAccepted) {
  for (const std::string method : {"GET", "HEAD"}) {
    for (const char* path :
         {"/status.json", "/status.json?pretty=1", "/status.json#x"}) {
      const auto request = ReadHttpRequest(method + " " + path +
                                           " HTTP/1.1\r\nhOsT: x\r\n\r\nmore");
      ASSERT_TRUE(request);
      EXPECT_EQ(request->status, kHttpOk);
      EXPECT_EQ(request->path, "/status.json");
      EXPECT_EQ(request->head, method == "HEAD");
    }
  }
}

TEST(HttpRequest, ARequestIsCompleteAtTheEmptyLine) {
  const std::string bytes = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ReadHttpRequest(std::string_view(bytes).substr(0, size)))
        << size;
  }
}

TEST(HttpRequest, MalformedRequestLinesAreRefused) {
  for (const char* line :
       {"", "GET", "GET /", " ", "GET / HTTP/2", "GET  HTTP/1.1",
        "GET metrics HTTP/1.1", "GET http:/h HTTP/1.1"}) {
    EXPECT_EQ(Refused(std::string(line) + "\r\n\r\n"), kHttpBadRequest) << line;
  }
}

TEST(HttpRequest, OtherMethodsAreRefused) {
  for (const std::string method : {"POST", "PUT", "DELETE", "get", "OPTIONS"}) {
    EXPECT_EQ(Refused(method + " /metrics HTTP/1.1\r\n\r\n"), kHttpNotAllowed);
  }
}

TEST(HttpRequest, ARequestIsRefusedOneByteAboveItsLimit) {
  const std::string fixed = "GET / HTTP/1.1\r\nA: \r\n\r\n";
  const auto request = [&](size_t bytes) {
    return "GET / HTTP/1.1\r\nA: " + std::string(bytes - fixed.size(), 'x') +
           "\r\n\r\n";
  };
  EXPECT_EQ(Refused(request(kMaxHttpRequest)), std::nullopt);
  EXPECT_EQ(Refused(request(kMaxHttpRequest + 1)), kHttpTooLarge);
  EXPECT_EQ(Refused(std::string(1 << 16, 'x')), kHttpTooLarge);
}

TEST(HttpAnswer, AnAnswerHasTypeAndLengthAndClosesTheConnection) {
  const std::string answer = HttpAnswer({kHttpNotAllowed, "seven b", "a/b"});
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"));
  for (const char* line : {"Content-Type: a/b\r\n", "Content-Length: 7\r\n",
                           "Connection: close\r\n", "Allow: GET, HEAD\r\n"}) {
    EXPECT_NE(answer.find(line), std::string::npos) << line;
  }
  EXPECT_TRUE(answer.ends_with("\r\n\r\nseven b"));
  EXPECT_EQ(HttpAnswer({kHttpOk, "", "a/b"}).find("Allow"), std::string::npos);
}

}  // namespace
}  // namespace sluice::daemon

// A daemon that only stores descriptors: storing-daemon --runtime-dir DIR
//
// It accepts SEQPACKET peers at DIR/test.sock. For peer N it stores the socket
// (s-N), a pidfd (p-N) and a memfd with a text (m-N), and then greets the peer
// with "peer N". It answers "TAG QUESTION" with "TAG ANSWER". A request leaves
// the queue only after its answer was sent, so a death loses no request, but
// may cause a second answer. A peer's pidfd stays stored after the socket's
// end.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/store/descriptor_store.h"
#include "daemon/store/starter.h"
#include "proto/base/pidfd.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

class StoringDaemon {
 public:
  explicit StoringDaemon(std::string folder, Starter starter)
      : path_(folder + "/test.sock"), kept_(std::move(starter.stored)) {
    DescriptorStore::Options options;
    options.notify_socket = starter.notify_socket;
    options.capacity = StoreCapacity(starter, 0);
    options.keeper = starter.keeper;
    options.on_loss = [] { fmt::print(stderr, "the keeper is lost\n"); };
    auto store = DescriptorStore::Start(std::move(options), kept_);
    SLUICE_CHECK_OK(store.status());
    store_ = *std::move(store);
    Listen();
  }

  int Run() {
    while (true) {
      std::vector<std::string> names = {"", ""};
      std::vector<pollfd> polls = {{signals_.get(), POLLIN, 0},
                                   {listener_.get(), POLLIN, 0}};
      for (const auto& [name, fd] : kept_) {
        if (!name.starts_with("s-")) continue;
        polls.push_back({fd.get(), POLLIN, 0});
        names.push_back(name);
      }
      poll(polls.data(), polls.size(), -1);
      if (polls[0].revents != 0) break;
      if (polls[1].revents != 0) Accept();
      for (size_t i = 2; i < polls.size(); ++i) {
        if (polls[i].revents != 0) Serve(names[i], polls[i].fd);
      }
    }
    unlink(path_.c_str());
    return 0;
  }

 private:
  void Listen() {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    unlink(path_.c_str());
    SLUICE_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)) == 0);
    SLUICE_CHECK(listen(listener_.get(), 100) == 0);
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    signals_ = UniqueFd(signalfd(-1, &ending, SFD_CLOEXEC));
  }

  absl::Status Keep(const std::string& name, UniqueFd fd) {
    const absl::Status put = store_->Put(name, fd.get());
    if (put.ok()) kept_[name] = std::move(fd);
    return put;
  }

  absl::Status Flush() {
    std::promise<absl::Status> done;
    store_->Flush([&](absl::Status status) { done.set_value(status); });
    return done.get_future().get();
  }

  void Accept() {
    UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ucred who = {};
    socklen_t size = sizeof(who);
    getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &who, &size);
    int number = 0;
    while (kept_.contains(fmt::format("p-{}", number))) ++number;
    const int raw = peer.get();
    SLUICE_CHECK_OK(Keep(fmt::format("m-{}", number),
                         Named(fmt::format("text of {}", number))));
    SLUICE_CHECK_OK(Keep(fmt::format("p-{}", number), PidfdOf(who.pid)));
    SLUICE_CHECK_OK(Keep(fmt::format("s-{}", number), std::move(peer)));
    SLUICE_CHECK_OK(Flush());
    Say(raw, fmt::format("peer {}", number));
  }

  static void Say(int socket, const std::string& text) {
    send(socket, text.data(), text.size(), MSG_NOSIGNAL);
  }

  void Serve(const std::string& name, int socket) {
    std::array<char, 256> buffer;
    const ssize_t got =
        recv(socket, buffer.data(), buffer.size(), MSG_PEEK | MSG_DONTWAIT);
    if (got <= 0) return Forget(name);
    const std::string request(buffer.data(), static_cast<size_t>(got));
    const size_t space = request.find(' ');
    Say(socket, request.substr(0, space + 1) +
                    Answer(request.substr(space + 1), name.substr(2)));
    recv(socket, buffer.data(), buffer.size(), 0);
  }

  void Forget(const std::string& name) {
    for (const char* kind : {"s-", "m-"}) {
      store_->Remove(kind + name.substr(2));
      kept_.erase(kind + name.substr(2));
    }
  }

  std::string Answer(const std::string& request, const std::string& number) {
    const size_t space = request.find(' ');
    const std::string verb = request.substr(0, space);
    const std::string rest =
        space == request.npos ? "" : request.substr(space + 1);
    if (verb == "text") return TextOf("m-" + number);
    if (verb == "peer") return PeerOf("p-" + rest);
    if (verb == "pid") return std::to_string(getpid());
    if (verb == "count") return std::to_string(kept_.size());
    if (verb == "has") return kept_.contains(rest) ? "yes" : "no";
    if (verb == "fill") return Fill(std::stoi(rest));
    if (verb == "put") return Put(std::stoi(rest)) ? "put" : "refused";
    if (verb == "wrong") return Wrong();
    if (verb == "drop") return Drop();
    if (verb == "exit") _exit(std::stoi(rest));
    return "echo " + rest;
  }

  std::string TextOf(const std::string& name) {
    std::array<char, 64> text;
    const ssize_t got =
        pread(kept_.at(name).get(), text.data(), text.size(), 0);
    return std::string(text.data(), static_cast<size_t>(got));
  }

  std::string PeerOf(const std::string& name) {
    pollfd ended = {kept_.at(name).get(), POLLIN, 0};
    return poll(&ended, 1, 0) == 0 ? "lives" : "ended";
  }

  // Returns how many of x-0, x-1 and so on have a content other than their
  // name.
  std::string Wrong() {
    int wrong = 0;
    for (const auto& [name, fd] : kept_) {
      wrong += name.starts_with("x-") && TextOf(name) != name;
    }
    return std::to_string(wrong);
  }

  bool Put(int count) {
    bool good = true;
    for (int i = 0; i < count; ++i) {
      good &= Keep(fmt::format("x-{}", i), Named(fmt::format("x-{}", i))).ok();
    }
    return good;
  }

  static UniqueFd Named(const std::string& text) {
    UniqueFd memory(memfd_create("text", MFD_CLOEXEC));
    SLUICE_CHECK(write(memory.get(), text.data(), text.size()) > 0);
    return memory;
  }

  std::string Fill(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string name = fmt::format("x-{}", i);
      if (kept_.contains(name)) continue;
      const absl::Status put = Keep(name, Named(name));
      if (put.ok()) continue;
      return Flush().ok() ? std::string(put.message()) : "not flushed";
    }
    return Flush().ok() ? "filled" : "not flushed";
  }

  std::string Drop() {
    std::erase_if(kept_, [&](const auto& entry) {
      if (!entry.first.starts_with("x-")) return false;
      store_->Remove(entry.first);
      return true;
    });
    return Flush().ok() ? "dropped" : "not flushed";
  }

  const std::string path_;
  std::map<std::string, UniqueFd> kept_;
  std::unique_ptr<DescriptorStore> store_;
  UniqueFd listener_;
  UniqueFd signals_;
};

int Main(int argc, char** argv) {
  SLUICE_CHECK(argc >= 3);
  if (argc > 3 && std::string(argv[3]) == "--refuse") return 2;
  if (argc > 3 && std::string(argv[3]) == "--die") return 1;
  // Blocks the signals before threads exist, so that no thread receives them.
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  auto starter = TakeFromStarter();
  SLUICE_CHECK_OK(starter.status());
  return StoringDaemon(argv[2], *std::move(starter)).Run();
}

}  // namespace
}  // namespace sluice::daemon

int main(int argc, char** argv) { return sluice::daemon::Main(argc, argv); }

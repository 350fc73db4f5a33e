#include "tests/fake_cuda/call.h"

#include <fmt/format.h>
#include <unistd.h>

namespace sluice::fake_cuda {

bool IsSticky(Result result) {
  return result == 214 || result == 220 ||
         (result >= 700 && result < 720 && result != 701 && result != 712 &&
          result != 713);
}

Call::Call(std::string_view name, Needs needs, Kind kind)
    : name_(name), world_(TheWorld()) {
  world_.mutex.Lock();
  Enter(needs, kind);
}

Call::~Call() {
  if (held_) world_.mutex.Unlock();
}

void Call::Unlock() {
  held_ = false;
  world_.mutex.Unlock();
}

void Call::Enter(Needs needs, Kind kind) {
  ++world_.calls[name_];
  if (const auto hang = world_.settings.hangs.find(name_);
      hang != world_.settings.hangs.end() && --hang->second == 0) {
    while (true) pause();
  }
  if (needs != Needs::kNothing) {
    if (world_.process == 0) {
      Refuse(Rule::kInitialised);
      return;
    }
    if (world_.process != getpid() && !LetsPass(Rule::kNotForked)) {
      Refuse(Rule::kNotForked);
      return;
    }
  }
  if (needs == Needs::kContext) {
    context_ = CurrentContext();
    if (context_ == nullptr) {
      const Rule rule = kind == kReleases ? Rule::kReleaseNeedsContext
                                          : Rule::kCurrentContext;
      if (!LetsPass(rule)) Refuse(rule);
      return;
    }
    if (context_->retained == 0) {
      Refuse(Rule::kLiveContext);
      return;
    }
    // A releasing call releases even if it then returns an error.
    Result& told = kind == kReleases ? late_ : result_;
    told = context_->lost;
    if (world_.DeviceIsLost(context_->device)) told = kDeviceUnavailable;
    if (told != kSuccess) SeeTheEndOf(*context_);
  }
  const auto failure = world_.settings.failures.find(name_);
  if (failure == world_.settings.failures.end() || failed()) return;
  if (--failure->second.call != 0) return;
  const Result code = failure->second.code;
  world_.settings.failures.erase(failure);
  if (context_ != nullptr && IsSticky(code)) context_->lost = code;
  (kind == kReleases ? late_ : result_) = code;
}

// A caller that learns of a lost context knows that the context's streams do
// nothing more, so the host's clock joins theirs. First waits for host code
// that still runs on them: fake_cuda_gone tells such code to end.
void Call::SeeTheEndOf(const ContextState& context) {
  while (context.running > 0) world_.ran.Wait(world_.mutex);
  for (const auto& [handle, stream] : world_.streams) {
    if (stream->context == &context) HostClock().Join(stream->timeline.clock);
  }
}

Result Call::Refuse(Rule rule, std::string_view detail) {
  const RuleText& text = TextOf(rule);
  ++world_.broken[static_cast<size_t>(rule)];
  world_.Find(fmt::format("{}: {} ({}: {}){}{}", name_, text.text, text.known,
                          text.source, detail.empty() ? "" : ": ", detail));
  const auto played = world_.settings.answers.find(rule);
  result_ =
      played != world_.settings.answers.end() ? played->second.code : text.code;
  return result_;
}

bool Call::LetsPass(Rule rule) const {
  const auto played = world_.settings.answers.find(rule);
  return played != world_.settings.answers.end() && played->second.code == 0;
}

Result Call::RefuseRange(Rule rule, std::string_view detail,
                         StreamState& stream) {
  if (!LetsPass(rule)) return Refuse(rule, detail);
  ContextState& context = *context_;
  const Result then = world_.settings.answers.at(rule).then;
  stream.queue->Push([&context, then] {
    const MutexLock lock(TheWorld().mutex);
    if (context.lost == kSuccess) context.lost = then;
  });
  return kSuccess;
}

void Call::LoseLater(Rule rule, const std::set<int>& gpus) {
  const auto played = world_.settings.answers.find(rule);
  if (played == world_.settings.answers.end() || played->second.code != 0) {
    return;
  }
  for (auto& [device, context] : world_.contexts) {
    if (gpus.contains(device) && context.lost == kSuccess) {
      context.lost = played->second.then;
    }
  }
}

void AwaitWhatIsPlayed(Rule rule) {
  World& world = TheWorld();
  std::vector<std::shared_ptr<WorkQueue>> queues;
  {
    const MutexLock lock(world.mutex);
    const auto played = world.settings.answers.find(rule);
    if (played == world.settings.answers.end() || played->second.code != 0 ||
        played->second.then != 0) {
      return;
    }
    for (const auto& [handle, stream] : world.streams) {
      queues.push_back(stream->queue);
    }
  }
  for (const auto& queue : queues) queue->Wait();
  const MutexLock lock(world.mutex);
  for (const auto& [handle, stream] : world.streams) {
    HostClock().Join(stream->timeline.clock);
  }
}

bool Call::CheckDevice(int device) {
  if (device < 0 || device >= world_.settings.Get("gpus")) {
    Refuse(Rule::kDeviceExists);
  } else if (world_.DeviceIsLost(device)) {
    result_ = kDeviceUnavailable;
  }
  return !failed();
}

std::shared_ptr<StreamState> Call::Stream(StreamPointer stream) {
  if (stream == nullptr) {
    auto& own = context_->null_stream;
    if (own == nullptr) own = world_.NewStream(context_);
    return own;
  }
  const auto it = world_.streams.find(stream);
  if (it != world_.streams.end()) return it->second;
  Refuse(Rule::kLiveStream);
  return nullptr;
}

EventState* Call::Event(EventPointer event) {
  const auto it = world_.events.find(event);
  if (it != world_.events.end()) return &it->second;
  Refuse(Rule::kLiveEvent);
  return nullptr;
}

}  // namespace sluice::fake_cuda

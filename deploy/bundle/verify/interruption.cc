#include "deploy/bundle/verify/interruption.h"

#include <atomic>

namespace sluice::verify {
namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);

void Note(int signal) { noted = signal; }

}  // namespace

Interruption::Interruption() {
  noted = 0;
  struct sigaction note = {};
  note.sa_handler = Note;
  note.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &note, &before_[i]);
    // A signal that was ignored (as under nohup) stays ignored.
    if (before_[i].sa_handler == SIG_IGN) {
      sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
}

Interruption::~Interruption() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &before_[i], nullptr);
  }
  if (came()) raise(noted);
}

bool Interruption::came() { return noted != 0; }

}  // namespace sluice::verify

#include "client/torch/stream/chunk_io.h"

#include "client/torch/placement.h"
#include "proto/base/poison.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

using client::CopyPiece;
using client::CopyRequest;
using client::Ticket;
using device::CopyDirection;

void Append(std::vector<CopyPiece>& pieces, std::byte* to,
            const std::byte* from, int64_t size) {
  if (size == 0) return;
  if (!pieces.empty()) {
    CopyPiece& last = pieces.back();
    if (last.to + last.size.size() == to &&
        last.from + last.size.size() == from) {
      last.size += Bytes(size);
      return;
    }
  }
  pieces.push_back({to, from, Bytes(size)});
}

void AddUnique(std::vector<ChunkBuffer*>& buffers, ChunkBuffer* buffer) {
  if (std::find(buffers.begin(), buffers.end(), buffer) == buffers.end()) {
    buffers.push_back(buffer);
  }
}

// Checks that a resident buffer was computed in place.
void CheckThere(const at::Tensor& from, const ChunkBuffer& to, int64_t offset) {
  SLUICE_CHECK(from.numel() == 0 || from.data_ptr() == to.data + offset);
}

}  // namespace

at::Tensor Slot::Take(at::IntArrayRef sizes, at::ScalarType type) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(type));
  for (const int64_t size : sizes) bytes *= size;
  const size_t field = taken_++;
  if (field < resident_.size() && resident_[field] != nullptr) {
    return ViewOf(resident_[field], sizes, type, device_);
  }
  SLUICE_CHECK(used_ + stream::AlignSlot(bytes) <= size_);
  std::byte* at = data_ + used_;
  used_ += stream::AlignSlot(bytes);
  return ViewOf(at, sizes, type, device_);
}

// --- staging ----------------------------------------------------------------

Ring::Ring(client::CopyEngine* copies, const RingMemory& memory,
           const Ticket& free)
    : copies_(copies) {
  for (int i = 0; i < memory.slots; ++i) {
    slots_.emplace_back(
        memory.device, memory.data + (memory.slots - 1 - i) * memory.slot_bytes,
        memory.slot_bytes, free);
  }
}

absl::Status StagingRing::Begin() {
  SLUICE_CHECK(pieces_.empty());
  current_ = (current_ + 1) % slots_.size();
  Slot& slot = slots_[current_];
  SLUICE_RETURN_IF_ERROR(copies_->Wait(slot.last_use_));
  Poison(slot.data_, slot.size_, slot.device_);
  slot.Rewind();
  return absl::OkStatus();
}

absl::Status Ring::AwaitUses() const {
  for (const Slot& slot : slots_) {
    SLUICE_RETURN_IF_ERROR(copies_->Wait(slot.last_use_));
  }
  return absl::OkStatus();
}

at::Tensor StagingRing::TakeFor(const ChunkBuffer& to, at::IntArrayRef sizes,
                                at::ScalarType type) {
  if (!to.resident) return Take(sizes, type);
  const at::Tensor place =
      ViewOf(to.data, sizes, type, slots_[current_].device_);
  SLUICE_CHECK(static_cast<int64_t>(place.nbytes()) == to.size);
  return place;
}

void StagingRing::Send(const at::Tensor& from, ChunkBuffer& to,
                       int64_t offset) {
  const int64_t size = static_cast<int64_t>(from.nbytes());
  SLUICE_CHECK(from.is_contiguous() && offset + size <= to.size);
  if (to.resident) return CheckThere(from, to, offset);
  Append(pieces_, to.data + offset,
         static_cast<const std::byte*>(from.data_ptr()), size);
  AddUnique(buffers_, &to);
}

Ticket StagingRing::Flush(const char* label) {
  const Ticket computed = copies_->MarkCompute();
  CopyRequest request{
      CopyDirection::kDeviceToHost, std::move(pieces_), {computed}, label};
  for (ChunkBuffer* buffer : buffers_) request.after.push_back(buffer->read);
  pieces_.clear();
  if (!request.pieces.empty()) {
    const Ticket sent = copies_->Enqueue(std::move(request));
    for (ChunkBuffer* buffer : buffers_) buffer->written = sent;
    slots_[current_].last_use_ = sent;
  }
  buffers_.clear();
  return computed;
}

Ticket StagingRing::SendNow(client::CopyEngine& copies, const at::Tensor& from,
                            ChunkBuffer& to, const Ticket& computed,
                            const char* label) {
  const int64_t size = static_cast<int64_t>(from.nbytes());
  SLUICE_CHECK(from.is_contiguous() && size == to.size && !to.resident);
  CopyRequest request{CopyDirection::kDeviceToHost, {}, {}, label};
  Append(request.pieces, to.data,
         static_cast<const std::byte*>(from.data_ptr()), size);
  request.after = {computed, to.read};
  to.written = copies.Enqueue(std::move(request));
  return to.written;
}

// --- fetching ---------------------------------------------------------------

void Fetch::Field(int64_t size) {
  field_ = used_;
  used_ += stream::AlignSlot(size);
  resident_.push_back(nullptr);
}

void Fetch::Space(ChunkBuffer& buffer) {
  if (buffer.resident) {
    resident_.push_back(buffer.data);
  } else {
    Field(buffer.size);
  }
}

void Fetch::Piece(ChunkBuffer& from, int64_t offset, int64_t at, int64_t size) {
  SLUICE_CHECK(offset + size <= from.size && field_ + at + size <= used_);
  parts_.push_back({field_ + at, from.data + offset, size});
  AddUnique(buffers_, &from);
}

void Fetch::Whole(ChunkBuffer& from) {
  Space(from);
  if (!from.resident) Piece(from, 0, 0, from.size);
}

FetchRing::FetchRing(client::CopyEngine* copies, const RingMemory& memory,
                     const Ticket& free)
    : Ring(copies, memory, free), pending_(memory.pending) {
  for (Slot& slot : slots_) slot.blocked_ = slot.data_ < memory.in_use_to;
}

void FetchRing::Unblock(const Ticket& free) {
  for (Slot& slot : slots_) {
    if (slot.blocked_) slot.last_use_ = free;
    slot.blocked_ = false;
  }
}

Fetches::Fetches(FetchRing* ring, int64_t count, const char* label,
                 Program program)
    : ring_(ring),
      count_(count),
      label_(label),
      program_(std::move(program)),
      first_(ring->next_) {
  Pump();
}

Fetches::~Fetches() {
  for (int64_t k = done_; k < issued_; ++k) {
    Slot& slot = ring_->slots_[(first_ + k) % ring_->slots_.size()];
    slot.last_use_ = slot.ready_;
  }
}

bool Fetches::IssueOne() {
  if (issued_ == count_) return false;
  if (issued_ - done_ == static_cast<int64_t>(ring_->slots_.size())) {
    return false;
  }
  Slot& slot = ring_->slots_[ring_->next_];
  Fetch fetch;
  if (slot.blocked_ || !program_(issued_, fetch)) return false;
  SLUICE_CHECK(fetch.used_ <= slot.size_);
  slot.resident_ = std::move(fetch.resident_);
  CopyRequest request{
      CopyDirection::kHostToDevice, {}, {slot.last_use_}, label_};
  if (PoisonsBuffers()) {
    if (ring_->copies_->Wait(slot.last_use_).ok()) {
      Poison(slot.data_, slot.size_, slot.device_);
    }
    request.after.push_back(ring_->copies_->MarkCompute());
  }
  for (const Fetch::Part& part : fetch.parts_) {
    Append(request.pieces, slot.data_ + part.to, part.from, part.size);
  }
  for (ChunkBuffer* from : fetch.buffers_) {
    request.after.push_back(from->written);
  }
  // Without a copy the slot is ready as soon as it may be written.
  slot.ready_ = request.pieces.empty()
                    ? slot.last_use_
                    : ring_->copies_->Enqueue(std::move(request));
  for (ChunkBuffer* from : fetch.buffers_) from->read = slot.ready_;
  ring_->next_ = (ring_->next_ + 1) % ring_->slots_.size();
  ++issued_;
  return true;
}

void Fetches::Pump() {
  while (IssueOne()) {
  }
}

absl::StatusOr<Slot*> Fetches::Next() {
  SLUICE_CHECK(taken_ == done_ && taken_ < count_);
  Pump();
  if (ring_->pending_ != nullptr) {
    SLUICE_RETURN_IF_ERROR(ring_->pending_->Advance());
  }
  // By program order everything that this fetch reads has been sent by now.
  SLUICE_CHECK(issued_ > taken_);
  Slot& slot = ring_->slots_[(first_ + taken_) % ring_->slots_.size()];
  SLUICE_RETURN_IF_ERROR(ring_->copies_->Wait(slot.ready_));
  ++taken_;
  slot.Rewind();
  return &slot;
}

void Fetches::Done() { Done(ring_->copies_->MarkCompute()); }

void Fetches::Done(const Ticket& last_use) {
  SLUICE_CHECK(taken_ == done_ + 1);
  ring_->slots_[(first_ + done_) % ring_->slots_.size()].last_use_ = last_use;
  ++done_;
  Pump();
}

namespace {

void CopyUnlessSame(const at::Tensor& to, const at::Tensor& from) {
  if (to.data_ptr() != from.data_ptr()) to.copy_(from);
}

}  // namespace

at::Tensor RowWriter::PlaceOf(int64_t first, int64_t count) const {
  const int64_t begin = kept_.size(0), end = first + count;
  if (end <= begin) return kept_.narrow(0, first, count);
  if (first >= begin && end <= begin + stored_.size(0)) {
    return stored_.narrow(0, first - begin, count);
  }
  return {};
}

void RowWriter::Store(int64_t first, const at::Tensor& part) {
  const int64_t begin = kept_.size(0), end = first + part.size(0);
  const int64_t kept = std::clamp(begin, first, end);
  const int64_t present = std::clamp(begin + stored_.size(0), kept, end);
  if (kept > first) {
    CopyUnlessSame(kept_.narrow(0, first, kept - first),
                   part.narrow(0, 0, kept - first));
  }
  if (present > kept) {
    CopyUnlessSame(stored_.narrow(0, kept - begin, present - kept),
                   part.narrow(0, kept - first, present - kept));
  }
}

}  // namespace sluice::runtime

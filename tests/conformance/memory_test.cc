#include <fcntl.h>

#include <algorithm>
#include <set>

#include "tests/conformance/fixture.h"

namespace sluice::device {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

class MemoryConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Drivers, MemoryConformance,
                         ::testing::Values("sim", "cuda"),
                         [](const auto& info) { return info.param; });

constexpr auto kBad = absl::StatusCode::kInvalidArgument;

TEST_P(MemoryConformance, DevicesAreDescribed) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto devices, driver_->Devices());
  ASSERT_FALSE(devices.empty());
  std::set<std::string> uuids;
  for (size_t i = 0; i < devices.size(); ++i) {
    EXPECT_EQ(devices[i].index, DeviceIndex(i));
    EXPECT_TRUE(devices[i].uuid.starts_with("GPU-")) << devices[i].uuid;
    EXPECT_FALSE(devices[i].name.empty());
    EXPECT_FALSE(devices[i].link.empty());
    EXPECT_GT(devices[i].total_memory, Bytes(0));
    uuids.insert(devices[i].uuid);
  }
  EXPECT_EQ(uuids.size(), devices.size());
}

TEST_P(MemoryConformance, SizesAreMultiplesOfTheGranularity) {
  for (const Placement where : {kOnGpu, kOnHost}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const Bytes granularity,
                                driver_->Granularity(where));
    EXPECT_GT(granularity, Bytes(0));
    EXPECT_EQ(granularity.count() % 4096, 0);
    EXPECT_THAT(driver_->Create(where, granularity + Bytes(1)), StatusIs(kBad));
    EXPECT_THAT(driver_->Create(where, Bytes(0)), StatusIs(kBad));
    EXPECT_THAT(driver_->Create(where, Bytes(0) - granularity), StatusIs(kBad));
  }
}

TEST_P(MemoryConformance, AGpuThatIsNotThereIsRefused) {
  EXPECT_THAT(driver_->Granularity(Placement::Gpu(DeviceIndex(1000))),
              StatusIs(kBad));
  EXPECT_THAT(driver_->Create(Placement::Gpu(DeviceIndex(1000)), Size(kOnGpu)),
              StatusIs(kBad));
  EXPECT_THAT(driver_->CreateStream(DeviceIndex(1000)), StatusIs(kBad));
}

TEST_P(MemoryConformance, MoreMemoryThanTheGpuHasIsRefused) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const MemoryUse use, driver_->Usage(kOnGpu));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Bytes granularity,
                              driver_->Granularity(kOnGpu));
  EXPECT_THAT(driver_->Create(kOnGpu, RoundUp(use.total, granularity) * 2),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_P(MemoryConformance, CreatedMemoryIsUsedUntilReleased) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const MemoryUse before, driver_->Usage(kOnGpu));
  const Bytes size = Size(kOnGpu);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kOnGpu, size));
  SLUICE_ASSERT_OK_AND_ASSIGN(const MemoryUse during, driver_->Usage(kOnGpu));
  EXPECT_EQ(during.total, before.total);
  EXPECT_GE(during.used, before.used + size);
  ASSERT_THAT(driver_->Release(memory), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const MemoryUse after, driver_->Usage(kOnGpu));
  EXPECT_LT(after.used, during.used);
}

TEST_P(MemoryConformance, AnEmptyHandleIsRefused) {
  EXPECT_THAT(driver_->Release(Memory()), StatusIs(kBad));
  EXPECT_THAT(driver_->Export(Memory()), StatusIs(kBad));
  EXPECT_THAT(driver_->DestroyStream(Stream()), StatusIs(kBad));
  EXPECT_THAT(driver_->DestroyEvent(Event()), StatusIs(kBad));
  EXPECT_THAT(driver_->QueryEvent(Event()), StatusIs(kBad));
}

TEST_P(MemoryConformance, AReleasedHandleIsRefused) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kOnGpu, Size(kOnGpu)));
  ASSERT_THAT(driver_->Release(memory), IsOk());
  EXPECT_THAT(driver_->Release(memory), StatusIs(kBad));
  EXPECT_THAT(driver_->Export(memory), StatusIs(kBad));
}

TEST_P(MemoryConformance, MemoryReturnsWhatWasWritten) {
  for (const Placement where : {kOnGpu, kOnHost}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const auto memory, Mapped::Create(driver_.get(), where, Size(where)));
    const Content content = Pattern(Size(where), 1);
    ASSERT_THAT(memory->Write(content), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const Content read, memory->Read());
    EXPECT_TRUE(read == content);
  }
}

TEST_P(MemoryConformance, TheCpuWritesToMappedHostMemory) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const auto memory, Mapped::Create(driver_.get(), kOnHost, Size(kOnHost)));
  const Content content = Pattern(Size(kOnHost), 2);
  std::copy(content.begin(), content.end(), memory->address());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Content read, memory->Read());
  EXPECT_TRUE(read == content);
}

// A lease of several extents is one range, with one SetAccess, and one copy may
// cross its extents.
TEST_P(MemoryConformance, ExtentsMapIntoOneRange) {
  for (const Placement where : {kOnGpu, kOnHost}) {
    const Bytes size = *driver_->Granularity(where);
    SLUICE_ASSERT_OK_AND_ASSIGN(const Address address,
                                driver_->Reserve(size * 3, where.kind));
    std::vector<Memory> extents;
    for (int i = 0; i < 3; ++i) {
      SLUICE_ASSERT_OK_AND_ASSIGN(const Memory extent,
                                  driver_->Create(where, size));
      extents.push_back(extent);
      ASSERT_THAT(driver_->Map(address + i * size.count(), size, extent),
                  IsOk());
    }
    ASSERT_THAT(driver_->SetAccess(address, size * 3, kGpu), IsOk());
    const Content content = Pattern(size * 3, 3);
    Content read(content.size());
    ASSERT_THAT(CopyNow(*driver_, address, content.data(), size * 3, kH2D),
                IsOk());
    ASSERT_THAT(CopyNow(*driver_, read.data(), address, size * 3, kD2H),
                IsOk());
    EXPECT_TRUE(read == content);
    // After the middle is unmapped the other pieces keep their access.
    ASSERT_THAT(driver_->Unmap(address + size.count(), size), IsOk());
    for (const int i : {0, 2}) {
      const Address at = address + i * size.count();
      ASSERT_THAT(CopyNow(*driver_, read.data(), at, size, kD2H), IsOk());
      EXPECT_TRUE(std::equal(read.begin(), read.begin() + size.count(),
                             content.begin() + i * size.count()));
      ASSERT_THAT(driver_->Unmap(at, size), IsOk());
    }
    ASSERT_THAT(driver_->FreeReservation(address, size * 3), IsOk());
    for (const Memory extent : extents) {
      EXPECT_THAT(driver_->Release(extent), IsOk());
    }
  }
}

TEST_P(MemoryConformance, MemoryOutlivesItsHandleWhileMapped) {
  const Bytes size = Size(kOnGpu);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kOnGpu, size));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address address,
                              driver_->Reserve(size, kOnGpu.kind));
  ASSERT_THAT(driver_->Map(address, size, memory), IsOk());
  ASSERT_THAT(driver_->Release(memory), IsOk());
  ASSERT_THAT(driver_->SetAccess(address, size, kGpu), IsOk());
  const Content content = Pattern(size, 4);
  Content read(content.size());
  ASSERT_THAT(CopyNow(*driver_, address, content.data(), size, kH2D), IsOk());
  ASSERT_THAT(CopyNow(*driver_, read.data(), address, size, kD2H), IsOk());
  EXPECT_TRUE(read == content);
  ASSERT_THAT(driver_->Unmap(address, size), IsOk());
  ASSERT_THAT(driver_->FreeReservation(address, size), IsOk());
}

TEST_P(MemoryConformance, MemoryIsMappedWholeAndOnceInsideAReservation) {
  const Bytes size = Size(kOnGpu);
  const Bytes half = *driver_->Granularity(kOnGpu);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kOnGpu, size));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address address,
                              driver_->Reserve(size, kOnGpu.kind));
  EXPECT_THAT(driver_->Map(address, half, memory), StatusIs(kBad));
  EXPECT_THAT(driver_->Map(address + half.count(), size, memory),
              StatusIs(kBad));
  EXPECT_THAT(driver_->Map(address, size, Memory()), StatusIs(kBad));
  ASSERT_THAT(driver_->Map(address, size, memory), IsOk());
  EXPECT_THAT(driver_->Map(address, size, memory), StatusIs(kBad));
  EXPECT_THAT(driver_->FreeReservation(address, size), StatusIs(kBad));
  ASSERT_THAT(driver_->Unmap(address, size), IsOk());
  EXPECT_THAT(driver_->Unmap(address, size), StatusIs(kBad));
  EXPECT_THAT(driver_->FreeReservation(address, size), IsOk());
  EXPECT_THAT(driver_->Release(memory), IsOk());
}

TEST_P(MemoryConformance, MemoryMapsOnlyInAReservationOfItsKind) {
  const Bytes size = Size(kOnGpu);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kOnGpu, size));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address address,
                              driver_->Reserve(size, kOnHost.kind));
  EXPECT_THAT(driver_->Map(address, size, memory), StatusIs(kBad));
  EXPECT_THAT(driver_->FreeReservation(address, size), IsOk());
  EXPECT_THAT(driver_->Release(memory), IsOk());
}

TEST_P(MemoryConformance, AnImportIsTheSameMemory) {
  for (const Placement where : {kOnGpu, kOnHost}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const auto memory, Mapped::Create(driver_.get(), where, Size(where)));
    SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd,
                                driver_->Export(memory->memory()));
    EXPECT_TRUE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
    SLUICE_ASSERT_OK_AND_ASSIGN(const Memory again,
                                driver_->Import(fd, where, Size(where)));
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const auto alias,
        Mapped::Map(driver_.get(), again, where, Size(where)));
    const Content content = Pattern(Size(where), 5);
    ASSERT_THAT(memory->Write(content), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const Content read, alias->Read());
    EXPECT_TRUE(read == content);
  }
}

TEST_P(MemoryConformance, ImportedMemoryIsNotExported) {
  for (const Placement where : {kOnGpu, kOnHost}) {
    const Bytes size = Size(where);
    SLUICE_ASSERT_OK_AND_ASSIGN(const Memory made,
                                driver_->Create(where, size));
    SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, driver_->Export(made));
    SLUICE_ASSERT_OK_AND_ASSIGN(const Memory imported,
                                driver_->Import(fd, where, size));
    for (const auto& again :
         {driver_->Export(imported).status(), driver_->Keep(imported).status()})
      EXPECT_THAT(again, StatusIs(kBad, HasSubstr("was imported")));
    SLUICE_ASSERT_OK_AND_ASSIGN(const Memory next,
                                driver_->Import(fd, where, size));
    for (const Memory each : {next, imported, made}) {
      ASSERT_THAT(driver_->Release(each), IsOk());
    }
  }
}

TEST_P(MemoryConformance, HeldByOthersSeesExportsOrIsUnimplemented) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kOnHost, Size(kOnHost)));
  if (!driver_->TellsHolders()) {
    EXPECT_THAT(driver_->HeldByOthers(memory),
                StatusIs(absl::StatusCode::kUnimplemented));
    ASSERT_THAT(driver_->Release(memory), IsOk());
    return;
  }
  const auto held = [&] {
    const auto answer = driver_->HeldByOthers(memory);
    EXPECT_THAT(answer, IsOk());
    return answer.ok() && *answer;
  };
  EXPECT_FALSE(held());
  SLUICE_ASSERT_OK_AND_ASSIGN(UniqueFd fd, driver_->Export(memory));
  EXPECT_TRUE(held());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory import,
                              driver_->Import(fd, kOnHost, Size(kOnHost)));
  fd.Reset();
  EXPECT_TRUE(held());
  {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const auto mapped,
        Mapped::Map(driver_.get(), import, kOnHost, Size(kOnHost)));
    EXPECT_TRUE(held());
  }
  // `mapped` released the import.
  EXPECT_FALSE(held());
  EXPECT_FALSE(held());
  ASSERT_THAT(driver_->Release(memory), IsOk());
}

TEST_P(MemoryConformance, HeldByOthersIgnoresAKeptDescriptor) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kOnHost, Size(kOnHost)));
  SLUICE_ASSERT_OK_AND_ASSIGN(UniqueFd kept, driver_->Keep(memory));
  EXPECT_TRUE(fcntl(kept.get(), F_GETFD) & FD_CLOEXEC);
  if (driver_->TellsHolders()) {
    const auto held = driver_->HeldByOthers(memory);
    ASSERT_THAT(held, IsOk());
    EXPECT_FALSE(*held);
  }
  ASSERT_THAT(driver_->Release(memory), IsOk());
  EXPECT_THAT(driver_->Keep(memory), StatusIs(kBad));
}

TEST_P(MemoryConformance, ADescriptorWithoutMemoryIsNotAdopted) {
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(driver_->Adopt(std::move(null), kOnHost, Size(kOnHost)),
              ::testing::Not(IsOk()));
}

TEST_P(MemoryConformance, ADescriptorWithoutMemoryIsNotImported) {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(driver_->Import(null, kOnGpu, Size(kOnGpu)).ok());
  EXPECT_FALSE(driver_->Import(UniqueFd(), kOnGpu, Size(kOnGpu)).ok());
}

TEST_P(MemoryConformance, HostMemoryIsRegisteredOnce) {
  const Bytes size = KiB(64);
  void* const pages = std::aligned_alloc(4096, size.size());
  const auto address = static_cast<Address>(pages);
  EXPECT_THAT(driver_->HostRegister(address, Bytes(0)), StatusIs(kBad));
  ASSERT_THAT(driver_->HostRegister(address, size), IsOk());
  EXPECT_THAT(driver_->HostRegister(address, size), StatusIs(kBad));
  EXPECT_THAT(driver_->HostUnregister(address), IsOk());
  EXPECT_THAT(driver_->HostUnregister(address), StatusIs(kBad));
  std::free(pages);
}

}  // namespace
}  // namespace sluice::device

#include "base/filter.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>

#include "base/describe.h"
#include "base/lock.h"
#include "base/status.h"
#include "openbnns/openbnns.h"

namespace obn {
namespace {

const char* article(const char* word) { return std::strchr("aeiou", word[0]) ? "an" : "a"; }

}  // namespace

int Filter::apply(size_t, const void*, size_t, void*, size_t) {
  return fail("filter: %s %s filter has an apply call of its own; the generic one does not serve it", article(kind_),
              kind_);
}

int Filter::apply_backward(const Backward&) {
  return fail("filter: %s %s filter has a backward call of its own; the generic one does not serve it", article(kind_),
              kind_);
}

int Filter::apply_two(size_t, const void*, size_t, const void*, size_t, void*, size_t) {
  return fail("filter: expected a product of two inputs; got %s %s filter", article(kind_), kind_);
}

int Filter::apply_two_backward(const BackwardTwo&) {
  return fail("filter: expected a product of two inputs; got %s %s filter", article(kind_), kind_);
}

BNNSNDArrayDescriptor Filter::pointer(BNNSPointerSpecifier) {
  fail("filter: only activation filters have alpha and beta; got %s %s filter", article(kind_), kind_);
  return BNNSNDArrayDescriptor{};
}

int Filter::set_winograd(int) {
  return fail("filter: only convolution filters choose between algorithms; got %s %s filter", article(kind_), kind_);
}

int Filter::set_precision(int) {
  return fail("filter: only filters made of matrix products have a precision; got %s %s filter", article(kind_), kind_);
}

int Filter::set_borrow_input(int) {
  return fail("filter: only normalization filters borrow their input; got %s %s filter", article(kind_), kind_);
}

size_t Filter::work_bytes(size_t) const { return 0; }
size_t Filter::kept_bytes(size_t) const { return 0; }
void Filter::describe(Description*) const {}

// ---- handles ----

namespace {

// A handle, as a number: generation (from bit 28) | slot (24 bits) | kind (4 bits). Kinds start at 1, so a handle is
// never NULL; generations start at 1, so it never looks like a small integer.
constexpr int kSlotShift = 4, kGenerationShift = 28;
constexpr size_t kChunk = 1024, kChunks = (size_t{1} << (kGenerationShift - kSlotShift)) / kChunk;

struct Slot {
  std::atomic<uint64_t> handle{0};      // 0 while free
  std::atomic<void*> object{nullptr};
  uint64_t generation = 0;              // guarded by core_lock, like next_free
  size_t next_free = 0;
};

// Chunks are made on demand and never given back, so a look-up needs no lock.
std::atomic<Slot*> chunks[kChunks];
constexpr size_t kNone = SIZE_MAX;
size_t first_free = kNone;  // guarded by core_lock
size_t slots_made = 0;      // guarded by core_lock

// Only for slots that exist.
Slot* slot_at(size_t index) { return chunks[index / kChunk].load(std::memory_order_acquire) + index % kChunk; }

size_t index_of(const void* handle) {
  return (reinterpret_cast<uint64_t>(handle) >> kSlotShift) & (kChunk * kChunks - 1);
}

HandleKind kind_of(const void* handle) { return static_cast<HandleKind>(reinterpret_cast<uint64_t>(handle) & 15); }

bool is_alive(const void* handle) {
  size_t index = index_of(handle);
  Slot* chunk = chunks[index / kChunk].load(std::memory_order_acquire);
  return chunk && chunk[index % kChunk].handle.load(std::memory_order_acquire) == reinterpret_cast<uint64_t>(handle);
}

const char* word_of(HandleKind kind) {
  switch (kind) {
    case HandleKind::filter: return "filter";
    case HandleKind::random_generator: return "random generator";
    case HandleKind::nearest_neighbors: return "nearest-neighbors store";
  }
  return "handle";
}

void explain(HandleKind wanted, const void* handle) {
  if (!handle) {
    fail("%s: expected a handle; got NULL", word_of(wanted));
  } else if (is_alive(handle)) {
    fail("%s: expected a %s; got a %s", word_of(wanted), word_of(wanted), word_of(kind_of(handle)));
  } else {
    fail("%s: expected a live handle; got one that was destroyed or never created", word_of(wanted));
  }
}

}  // namespace

void* add_handle(HandleKind kind, void* object) {
  std::unique_lock guard(core_lock);
  while (first_free == kNone) {
    const size_t in_use = slots_made;
    guard.unlock();
    Slot* made = in_use / kChunk < kChunks ? new (std::nothrow) Slot[kChunk] : nullptr;
    if (!made) {
      fail("%s: expected room for another handle; %zu are in use", word_of(kind), in_use);
      return nullptr;
    }
    guard.lock();
    if (slots_made != in_use) {  // another thread was quicker
      guard.unlock();
      delete[] made;
      guard.lock();
      continue;
    }
    for (size_t i = 0; i < kChunk; ++i) made[i].next_free = i + 1 < kChunk ? slots_made + i + 1 : kNone;
    chunks[slots_made / kChunk].store(made, std::memory_order_release);
    first_free = slots_made;
    slots_made += kChunk;
  }
  size_t index = first_free;
  Slot* slot = slot_at(index);
  first_free = slot->next_free;
  slot->generation = (slot->generation + 1) & ((uint64_t{1} << (64 - kGenerationShift)) - 1);
  if (slot->generation == 0) slot->generation = 1;
  uint64_t value = slot->generation << kGenerationShift | static_cast<uint64_t>(index) << kSlotShift |
                   static_cast<uint64_t>(kind);
  slot->object.store(object, std::memory_order_relaxed);
  slot->handle.store(value, std::memory_order_release);
  return reinterpret_cast<void*>(value);
}

void* find_handle(HandleKind kind, const void* handle) {
  if (is_alive(handle) && kind_of(handle) == kind) [[likely]]
    return slot_at(index_of(handle))->object.load(std::memory_order_relaxed);
  explain(kind, handle);
  return nullptr;
}

void* drop_handle(HandleKind kind, const void* handle) {
  std::unique_lock guard(core_lock);
  if (!is_alive(handle) || kind_of(handle) != kind) {
    guard.unlock();
    explain(kind, handle);
    return nullptr;
  }
  Slot* slot = slot_at(index_of(handle));
  slot->handle.store(0, std::memory_order_release);
  void* object = slot->object.load(std::memory_order_relaxed);
  slot->next_free = first_free;
  first_free = index_of(handle);
  return object;
}

// ---- filters ----

Filter* find_filter(BNNSFilter handle, const char* kind) {
  Filter* filter = static_cast<Filter*>(find_handle(HandleKind::filter, handle));
  if (filter && kind && filter->kind() != kind) {
    const char* other = filter->kind();
    fail("filter: expected %s %s filter; got %s %s filter", article(kind), kind, article(other), other);
    return nullptr;
  }
  return filter;
}

BNNSFilter publish(Filter* filter) {
  if (!filter) return nullptr;
  BNNSFilter handle = add_handle(HandleKind::filter, filter);
  if (!handle) destroy(filter);
  return handle;
}

BNNSFilter publish(Filter* filter, int status) {
  if (status == 0) return publish(filter);
  destroy(filter);
  return nullptr;
}

void destroy(Filter* filter) {
  Options options = filter->options();
  filter->~Filter();
  options.release(filter);
}

}  // namespace obn

extern "C" {

int BNNSFilterApply(BNNSFilter filter, const void* in, void* out) {
  return BNNSFilterApplyBatch(filter, 1, in, 0, out, 0);
}

int BNNSFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride, void* out,
                         size_t out_stride) {
  obn::Filter* found = obn::find_filter(filter);
  if (!found) return -1;
  return obn::call_filter(found, obn::Pass::forward, batch_size,
                          [&] { return found->apply(batch_size, in, in_stride, out, out_stride); });
}

int BNNSFilterApplyBackwardBatch(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride,
                                 BNNSNDArrayDescriptor* in_delta, size_t in_delta_stride, const void* out,
                                 size_t out_stride, const BNNSNDArrayDescriptor* out_delta, size_t out_delta_stride,
                                 BNNSNDArrayDescriptor* weights_delta, BNNSNDArrayDescriptor* bias_delta) {
  obn::Filter* found = obn::find_filter(filter);
  if (!found) return -1;
  if (!out_delta) return obn::fail("grad_output: expected a descriptor; got NULL");
  return obn::call_filter(found, obn::Pass::backward, batch_size, [&] {
    return found->apply_backward({batch_size, in, in_stride, in_delta, in_delta_stride, out, out_stride, out_delta,
                                  out_delta_stride, weights_delta, bias_delta});
  });
}

int BNNSFilterApplyTwoInput(BNNSFilter filter, const void* inA, const void* inB, void* out) {
  return BNNSFilterApplyTwoInputBatch(filter, 1, inA, 0, inB, 0, out, 0);
}

int BNNSFilterApplyTwoInputBatch(BNNSFilter filter, size_t batch_size, const void* inA, size_t inA_stride,
                                 const void* inB, size_t inB_stride, void* out, size_t out_stride) {
  obn::Filter* found = obn::find_filter(filter);
  if (!found) return -1;
  return obn::call_filter(found, obn::Pass::forward, batch_size, [&] {
    return found->apply_two(batch_size, inA, inA_stride, inB, inB_stride, out, out_stride);
  });
}

// The output of the forward call is not read: no product needs it.
int BNNSFilterApplyBackwardTwoInputBatch(BNNSFilter filter, size_t batch_size, const void* inA, size_t inA_stride,
                                         BNNSNDArrayDescriptor* inA_delta, size_t inA_delta_stride, const void* inB,
                                         size_t inB_stride, BNNSNDArrayDescriptor* inB_delta, size_t inB_delta_stride,
                                         const void*, size_t, const BNNSNDArrayDescriptor* out_delta,
                                         size_t out_delta_stride, BNNSNDArrayDescriptor* weights_delta,
                                         BNNSNDArrayDescriptor* bias_delta) {
  obn::Filter* found = obn::find_filter(filter);
  if (!found) return -1;
  if (!out_delta) return obn::fail("grad_output: expected a descriptor; got NULL");
  return obn::call_filter(found, obn::Pass::backward, batch_size, [&] {
    return found->apply_two_backward({batch_size, inA, inA_stride, inA_delta, inA_delta_stride, inB, inB_stride,
                                      inB_delta, inB_delta_stride, out_delta, out_delta_stride, weights_delta,
                                      bias_delta});
  });
}

BNNSNDArrayDescriptor BNNSGetPointer(BNNSFilter filter, BNNSPointerSpecifier target) {
  obn::Filter* found = obn::find_filter(filter);
  return found ? found->pointer(target) : BNNSNDArrayDescriptor{};
}

int obn_filter_set_winograd(BNNSFilter filter, int on) {
  obn::Filter* found = obn::find_filter(filter);
  return found ? found->set_winograd(on) : -1;
}

int obn_filter_set_matmul_precision(BNNSFilter filter, int precision) {
  obn::Filter* found = obn::find_filter(filter);
  return found ? found->set_precision(precision) : -1;
}

int obn_filter_set_borrow_input(BNNSFilter filter, int on) {
  obn::Filter* found = obn::find_filter(filter);
  return found ? found->set_borrow_input(on) : -1;
}

size_t obn_filter_work_bytes(BNNSFilter filter, size_t batch_size) {
  obn::Filter* found = obn::find_filter(filter);
  return found ? found->work_bytes(batch_size) : SIZE_MAX;
}

size_t obn_filter_kept_bytes(BNNSFilter filter, size_t batch_size) {
  obn::Filter* found = obn::find_filter(filter);
  return found ? found->kept_bytes(batch_size) : SIZE_MAX;
}

void BNNSFilterDestroy(BNNSFilter filter) {
  if (!filter) return;
  auto* found = static_cast<obn::Filter*>(obn::drop_handle(obn::HandleKind::filter, filter));
  if (found) obn::destroy(found);
}
}

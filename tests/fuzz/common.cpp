#include "common.h"

namespace fuzz {

void run_generic(World& w, BNNSFilter filter, const Layer& layer) {
  w.question(filter);
  const bool is_one = w.flip();  // BNNSFilterApply
  const size_t batch = is_one ? 1 : w.batch(), x_step = w.step(layer.x), y_step = w.step(layer.y);
  void* x = w.place(layer.x, batch, x_step);
  void* y = w.place(layer.y, batch, y_step, x);
  w.say("  batch %zu, steps %zu and %zu, x %p, y %p\n", batch, x_step, y_step, x, y);
  if (!w.affords(work_of(layer, batch))) return;
  const BNNSFilter none = w.odd() ? w.no_filter() : nullptr;
  if (none) {
    w.refuse("BNNSFilterApplyBatch", [&] { return BNNSFilterApplyBatch(none, batch, x, x_step, y, y_step); });
    w.refuse("BNNSFilterApply", [&] { return BNNSFilterApply(none, x, y); });
    w.refuse("BNNSFilterApplyTwoInput", [&] { return BNNSFilterApplyTwoInput(filter, x, x, y); });
  }
  if (is_one) {
    w.call("BNNSFilterApply", {values_of(layer.y, y)}, [&] { return BNNSFilterApply(filter, x, y); });
  } else {
    w.call("BNNSFilterApplyBatch", {values_of(layer.y, y, batch, y_step)},
           [&] { return BNNSFilterApplyBatch(filter, batch, x, x_step, y, y_step); });
  }
  if (!w.flip()) return;
  BNNSNDArrayDescriptor dw = layer.weights ? w.gradient(*layer.weights) : BNNSNDArrayDescriptor{};
  BNNSNDArrayDescriptor db = layer.bias ? w.gradient(*layer.bias) : BNNSNDArrayDescriptor{};
  const size_t dx_step = w.step(layer.x), dy_step = w.step(layer.y);
  BNNSNDArrayDescriptor dx = w.gradient(layer.x, batch, dx_step), dy = w.gradient(layer.y, batch, dy_step);
  BNNSNDArrayDescriptor* dw_or_none = layer.weights || w.odd() ? w.maybe(&dw) : nullptr;
  BNNSNDArrayDescriptor* db_or_none = layer.bias || w.odd() ? w.maybe(&db) : nullptr;
  BNNSNDArrayDescriptor* dx_or_none = w.maybe(&dx);
  const BNNSNDArrayDescriptor* dy_or_none = w.odd() ? nullptr : &dy;
  if (w.in.one_in(4)) x = nullptr;
  if (w.in.one_in(4)) y = nullptr;
  w.say("dx", dx), w.say("dy", dy), w.say("dw", dw), w.say("db", db);
  w.call("BNNSFilterApplyBackwardBatch",
         {values_of(dx_or_none, batch, dx_step), values_of(dw_or_none), values_of(db_or_none)}, [&] {
           return BNNSFilterApplyBackwardBatch(filter, batch, x, x_step, dx_or_none, dx_step, y, y_step, dy_or_none,
                                               dy_step, dw_or_none, db_or_none);
         });
}

size_t work_of(const Layer& layer, size_t batch) {
  const Where x = locate(layer.x), y = locate(layer.y);
  size_t values, work;
  if (!x.sound || !y.sound) return 0;  // to be refused
  if (__builtin_mul_overflow(std::max(x.count, y.count), layer.reduction, &values) ||
      __builtin_mul_overflow(values, batch, &work))
    return SIZE_MAX;
  return work;
}

}  // namespace fuzz

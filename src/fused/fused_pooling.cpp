// Fused layers with a pooling behind their normalization, the desk. Three layers are not in the BNNS interface.
//
//   x → pair → a → pooling → y        dy → pooling → da → pair → dx
//
// Where the pair can train the pooling in its own pass (fused_nchwc.h), its calls are all there is. Otherwise the two
// are called one after the other: a training call saves a and where its maxima are; da, and a of an inference, lie in
// the workspace behind what the pair asks for.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/kept_block.h"
#include "base/status.h"
#include "base/workspace.h"
#include "fused/fused.h"
#include "openbnns/openbnns.h"

namespace obn::fused {
namespace {

class Pooled final : public Fused {
 public:
  explicit Pooled(const Options& options) : Fused(kKind, options), block_(options) {}
  ~Pooled() override {
    if (pair_) destroy(pair_);
    if (pooling_) destroy(pooling_);
  }

  int prepare(const BNNSFilterType* types, const void* const* blocks) override;
  bool takes_many() const override { return pair_->takes_many(); }
  int apply_fused(const ForwardArguments& arguments) override;
  int apply_fused_backward(const BackwardArguments& arguments) override;
  int set_winograd(int on) override { return pair_->set_winograd(on); }
  int set_precision(int precision) override { return pair_->set_precision(precision); }
  void forget() override {
    pair_->forget();
    batch_ = 0;
  }
  size_t work_bytes(size_t batch) const override;
  size_t kept_bytes(size_t batch) const override;
  void describe(Description* description) const override {
    Description pooling;
    pooling_->describe(&pooling);
    pair_->describe(description);
    description->kinds[2] = pooling.kinds[0];
    description->output = pooling.output;
  }

 private:
  // The parts of what a training call keeps.
  struct Saved {
    std::byte* a;
    uint32_t* indices;  // of maxima only; without gaps
    size_t bytes;
  };
  Saved lay_out_saved(size_t batch, std::byte* block) const;
  int reserve(size_t batch);
  std::byte* work_behind_pair(size_t batch) const;
  bool is_max() const { return pooling_->plan().function == BNNSPoolingFunctionMax; }

  Fused* pair_ = nullptr;
  pooling::Pooling* pooling_ = nullptr;
  KeptBlock block_;
  size_t batch_ = 0;         // of the last training call; 0: none
  bool was_pooled_ = false;  // the pair ran all of it
};

int Pooled::prepare(const BNNSFilterType* types, const void* const* blocks) {
  BNNSLayerParametersNormalization norm = *static_cast<const BNNSLayerParametersNormalization*>(blocks[1]);
  BNNSLayerParametersPooling pooling = *static_cast<const BNNSLayerParametersPooling*>(blocks[2]);
  if (pooling.pooling_function == BNNSPoolingFunctionUnMax)
    return fail("pooling: expected a maximum, an average or an L2 norm behind a normalization; got unmax");
  if (pooling.bias.data) return fail("bias: expected none in a pooling behind a normalization; got one");
  if (check_joint(norm.o_desc, "second", pooling.i_desc, "third") != 0) return -1;
  norm.o_desc = packed(norm.o_desc);
  pooling.i_desc = packed(pooling.i_desc);
  const void* of_pair[] = {blocks[0], &norm};
  pair_ = make_pair(types, of_pair, options());
  if (!pair_) return -1;
  pooling_ = pooling::make_pooling(pooling, options());
  if (!pooling_) return -1;
  pooling_->pack_indices();
  pair_->join(pooling_->plan(), pooling_->output());
  return 0;
}

// ---- memory ----

Pooled::Saved Pooled::lay_out_saved(size_t batch, std::byte* block) const {
  Workspace space(block);
  Saved saved;
  saved.a = space.take_samples(*pair_->output(), batch);
  saved.indices = is_max() ? space.take<uint32_t>(batch, pooling_->output().count) : nullptr;
  saved.bytes = space.used();
  return saved;
}

size_t Pooled::kept_bytes(size_t batch) const {
  if (pair_->takes_pooling(batch)) return pair_->pooled_saved_bytes(batch);
  const size_t pair = pair_->kept_bytes(batch);
  if (pair == SIZE_MAX) return pair;
  const size_t own = lay_out_saved(batch, nullptr).bytes;
  return check_saved(own != SIZE_MAX && own <= SIZE_MAX / 2 - pair ? pair + own : SIZE_MAX, batch);
}

int Pooled::reserve(size_t batch) {
  if (kept_bytes(batch) == SIZE_MAX) return -1;
  return block_.reserve(lay_out_saved(batch, nullptr).bytes, &batch_);
}

size_t Pooled::work_bytes(size_t batch) const {
  if (batch == 0) return pair_->work_bytes(batch);
  const size_t pooled = pair_->takes_pooling(batch) ? pair_->pooled_work_bytes(batch) : 0;
  if (pooled == SIZE_MAX) return pooled;
  const size_t pair = pair_->work_bytes(batch);
  if (pair == SIZE_MAX) return pair;
  Workspace space;
  space.take(pair);
  space.take_samples(*pair_->output(), batch);
  return std::max(pooled, space.used());
}

// Workspace for a or da; NULL with a sentence. The pair finds its own part, the first one, large enough.
std::byte* Pooled::work_behind_pair(size_t batch) const {
  const size_t pair = pair_->work_bytes(batch);
  if (pair == SIZE_MAX) return nullptr;
  Workspace counted;
  counted.take(pair);
  counted.take_samples(*pair_->output(), batch);
  std::byte* block;
  if (find_workspace(counted.used(), &block) != 0) return nullptr;
  Workspace space(block);
  space.take(pair);
  return space.take_samples(*pair_->output(), batch);
}

// ---- calls ----

int Pooled::apply_fused(const ForwardArguments& a) {
  if (a.batch == 0) return pair_->apply_fused(a);
  if (a.training && pair_->takes_pooling(a.batch)) {
    ForwardArguments pooled = a;
    pooled.is_pooled = true;
    if (pair_->apply_fused(pooled) != 0) return -1;
    was_pooled_ = true;
    return 0;
  }
  const View& y = pooling_->output();
  size_t y_step;
  if (read_batch(y, a.y, a.batch, a.y_stride, Access::write, "output", &y_step) != 0 ||
      pair_->check_output_place(a, {"output", &y, a.y, y_step, a.batch}) != 0)
    return -1;
  std::byte* between = a.training ? nullptr : work_behind_pair(a.batch);
  uint32_t* indices = nullptr;
  if (a.training) {
    if (reserve(a.batch) != 0) return -1;
    const Saved saved = lay_out_saved(a.batch, block_.data());
    between = saved.a;
    indices = saved.indices;
    batch_ = 0;
    was_pooled_ = false;
  }
  if (!between) return -1;
  ForwardArguments of_pair = a;
  of_pair.y = between;
  of_pair.y_stride = 0;
  if (pair_->apply_fused(of_pair) != 0 ||
      pooling_->apply_indexed(a.batch, between, 0, a.y, a.y_stride, BNNSDataTypeUInt32, indices, 0) != 0)
    return -1;
  if (a.training) batch_ = a.batch;
  return 0;
}

int Pooled::apply_fused_backward(const BackwardArguments& a) {
  if (a.batch == 0 && pooling_->plan().activation.check_backward() != 0) return -1;
  if (a.batch == 0 || was_pooled_) {
    BackwardArguments pooled = a;
    pooled.is_pooled = true;
    return pair_->apply_fused_backward(pooled);
  }
  if (!a.dy) return fail("grad_output: expected a descriptor; got NULL");
  if (batch_ == 0) return fail("filter: expected an apply in training mode before its gradients; there was none");
  if (a.batch != batch_)
    return fail("batch: expected %zu samples, as in the last training apply; got %zu", batch_, a.batch);
  const Saved saved = lay_out_saved(a.batch, block_.data());
  std::byte* between = work_behind_pair(a.batch);
  if (!between) return -1;
  const View& of_pair = *pair_->output();
  BNNSNDArrayDescriptor da = {};
  da.layout = BNNSDataLayoutImageCHW;
  std::copy_n(of_pair.extent, of_pair.rank, da.size);
  da.data_type = of_pair.type;
  da.data = between;
  da.flags = BNNSNDArrayFlagBackpropSet;
  const Backward of_pooling = {a.batch, saved.a, 0, &da, 0, a.y, a.y_stride, a.dy, a.dy_stride, nullptr, nullptr};
  if (pooling_->apply_backward_indexed(of_pooling, BNNSDataTypeUInt32, saved.indices, 0) != 0) return -1;
  BackwardArguments rest = a;
  rest.y = saved.a;
  rest.y_stride = 0;
  rest.dy = &da;
  rest.dy_stride = 0;
  return pair_->apply_fused_backward(rest);
}

}  // namespace

Fused* make_pooled(const BNNSFilterType* types, const void* const* blocks, const Options& options) {
  if (types[2] != OBN_FILTER_POOLING) {
    fail("layers: expected a pooling (%u) as the third one; got %u", static_cast<unsigned>(OBN_FILTER_POOLING),
         static_cast<unsigned>(types[2]));
    return nullptr;
  }
  Pooled* filter = options.make<Pooled>(options);
  if (!filter) return nullptr;
  if (filter->prepare(types, blocks) != 0) {
    destroy(filter);
    return nullptr;
  }
  return filter;
}

}  // namespace obn::fused

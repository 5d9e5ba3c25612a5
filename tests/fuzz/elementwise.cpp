// Activations, quantization, clipping and norms, optimizers, random numbers, and the small calls of the base.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "common.h"

namespace fuzz {
namespace {

BNNSNDArrayDescriptor some_array(World& w, BNNSDataType type) {
  constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutVector,        BNNSDataLayoutImageCHW,
                                         BNNSDataLayout2DFirstMajor,  BNNSDataLayoutRowMajorMatrix,
                                         BNNSDataLayout3DLastMajor,   BNNSDataLayout4DFirstMajor,
                                         BNNSDataLayout5DLastMajor,   BNNSDataLayoutMHA_DHK,
                                         BNNSDataLayoutColumnMajorMatrix};
  const BNNSDataLayout layout = kLayouts[w.in.pick(std::size(kLayouts))];
  if (layout == BNNSDataLayoutVector) {
    const size_t long_ones[] = {w.extent(), 64, 100, 1000, 4097};
    return w.describe(layout, {long_ones[w.in.pick(5)]}, type);
  }
  return w.describe(layout, {w.extent(), w.extent(), w.few(5), w.few(3), w.few(2)}, type);
}

BNNSNDArrayDescriptor like(World& w, BNNSNDArrayDescriptor d, BNNSDataType type) {
  d.data_type = type;
  w.restride(&d);
  if (w.odd()) d.size[w.in.pick(3)] = w.extent();
  return d;
}

// What is declared and not built. A function that gets built is left alone here until it has a family of its own.
struct Named {
  const char* name;
  void* address;
};
#define OBN_NAMED(name) {#name, reinterpret_cast<void*>(name)}
const Named kUnbuilt[] = {
    OBN_NAMED(BNNSBandPart), OBN_NAMED(BNNSCompareTensor), OBN_NAMED(BNNSComputeLSTMTrainingCacheCapacity),
    OBN_NAMED(BNNSCopy), OBN_NAMED(BNNSCreateNearestNeighbors), OBN_NAMED(BNNSCropResize),
    OBN_NAMED(BNNSCropResizeBackward), OBN_NAMED(BNNSDestroyNearestNeighbors), OBN_NAMED(BNNSDirectApplyInTopK),
    OBN_NAMED(BNNSDirectApplyLSTMBatchBackward), OBN_NAMED(BNNSDirectApplyLSTMBatchTrainingCaching),
    OBN_NAMED(BNNSDirectApplyReduction), OBN_NAMED(BNNSDirectApplyTopK), OBN_NAMED(BNNSFilterCreateLayerDropout),
    OBN_NAMED(BNNSFilterCreateLayerEmbedding), OBN_NAMED(BNNSFilterCreateLayerPadding),
    OBN_NAMED(BNNSFilterCreateLayerPermute), OBN_NAMED(BNNSFilterCreateLayerReduction),
    OBN_NAMED(BNNSFilterCreateLayerResize), OBN_NAMED(BNNSGather), OBN_NAMED(BNNSGatherND),
    OBN_NAMED(BNNSGraphCompileFromFile), OBN_NAMED(BNNSGraphCompileOptionsDestroy),
    OBN_NAMED(BNNSGraphCompileOptionsGetGenerateDebugInfo),
    OBN_NAMED(BNNSGraphCompileOptionsGetOptimizationPreference), OBN_NAMED(BNNSGraphCompileOptionsGetOutputFD),
    OBN_NAMED(BNNSGraphCompileOptionsGetOutputPath), OBN_NAMED(BNNSGraphCompileOptionsGetTargetSingleThread),
    OBN_NAMED(BNNSGraphCompileOptionsMakeDefault), OBN_NAMED(BNNSGraphCompileOptionsSetGenerateDebugInfo),
    OBN_NAMED(BNNSGraphCompileOptionsSetMessageLogCallback), OBN_NAMED(BNNSGraphCompileOptionsSetMessageLogMask),
    OBN_NAMED(BNNSGraphCompileOptionsSetOptimizationPreference), OBN_NAMED(BNNSGraphCompileOptionsSetOutputFD),
    OBN_NAMED(BNNSGraphCompileOptionsSetOutputPath), OBN_NAMED(BNNSGraphCompileOptionsSetTargetSingleThread),
    OBN_NAMED(BNNSGraphContextDestroy), OBN_NAMED(BNNSGraphContextEnableNanAndInfChecks),
    OBN_NAMED(BNNSGraphContextExecute), OBN_NAMED(BNNSGraphContextGetTensor),
    OBN_NAMED(BNNSGraphContextGetWorkspaceSize), OBN_NAMED(BNNSGraphContextMake),
    OBN_NAMED(BNNSGraphContextMakeStreaming), OBN_NAMED(BNNSGraphContextSetArgumentType),
    OBN_NAMED(BNNSGraphContextSetBatchSize), OBN_NAMED(BNNSGraphContextSetDynamicShapes),
    OBN_NAMED(BNNSGraphContextSetMessageLogCallback), OBN_NAMED(BNNSGraphContextSetMessageLogMask),
    OBN_NAMED(BNNSGraphContextSetOutputAllocationCallback), OBN_NAMED(BNNSGraphContextSetStreamingAdvanceCount),
    OBN_NAMED(BNNSGraphContextSetWorkspaceAllocationCallback), OBN_NAMED(BNNSGraphGetArgumentCount),
    OBN_NAMED(BNNSGraphGetArgumentIntents), OBN_NAMED(BNNSGraphGetArgumentInterleaveFactors),
    OBN_NAMED(BNNSGraphGetArgumentNames), OBN_NAMED(BNNSGraphGetArgumentPosition),
    OBN_NAMED(BNNSGraphGetFunctionCount), OBN_NAMED(BNNSGraphGetFunctionNames), OBN_NAMED(BNNSGraphGetInputCount),
    OBN_NAMED(BNNSGraphGetInputNames), OBN_NAMED(BNNSGraphGetOutputCount), OBN_NAMED(BNNSGraphGetOutputNames),
    OBN_NAMED(BNNSGraphTensorFillStrides), OBN_NAMED(BNNSNearestNeighborsGetInfo),
    OBN_NAMED(BNNSNearestNeighborsLoad), OBN_NAMED(BNNSPermuteFilterApplyBackwardBatch), OBN_NAMED(BNNSScatter),
    OBN_NAMED(BNNSScatterND), OBN_NAMED(BNNSShuffle), OBN_NAMED(BNNSTile), OBN_NAMED(BNNSTileBackward),
    OBN_NAMED(BNNSTranspose),
};
#undef OBN_NAMED

// None of them looks at its arguments, so any will do.
[[clang::no_sanitize("function")]] void call_blindly(void* address) {
  uintptr_t room[32] = {};
  const auto first = reinterpret_cast<uintptr_t>(room);
  reinterpret_cast<uintptr_t (*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t)>(address)(
      first, first, first, first, first, first);
}

}  // namespace

void activations(World& w) {
  BNNSLayerParametersActivation p = {};
  const BNNSDataType type = w.in.one_in(3) ? w.any_type() : w.float_type();
  p.i_desc = some_array(w, type);
  p.o_desc = like(w, p.i_desc, w.in.one_in(3) ? w.any_type() : type);
  const size_t channels = p.i_desc.layout == BNNSDataLayoutImageCHW ? p.i_desc.size[2] : p.i_desc.size[0];
  p.activation = w.activation(channels);
  if (p.activation.function == BNNSActivationFunctionIdentity && w.flip()) {
    p.activation.function = static_cast<BNNSActivationFunction>(w.in.pick(36));
    p.activation.alpha = w.real(0.5f);
    p.activation.beta = w.real(1.0f);
    if (p.activation.function == BNNSActivationFunctionIntegerLinearSaturatePerChannel)
      p.activation.function = BNNSActivationFunctionSoftmax;  // which the arrays above are not made for
  }
  p.axis_flags = w.odd() ? static_cast<uint32_t>(w.in.number()) : static_cast<uint32_t>(w.in.pick(8));
  if (static_cast<uint32_t>(type) & BNNSDataTypeIndexedBit) {
    const BNNSNDArrayDescriptor d = w.with_data(p.i_desc);
    p.i_desc.table_data = d.table_data;
    p.i_desc.table_data_type = d.table_data_type;
  }
  w.say("x", p.i_desc), w.say("y", p.o_desc);
  w.say("  function %u alpha %g beta %g axes %x\n", static_cast<unsigned>(p.activation.function),
        static_cast<double>(p.activation.alpha), static_cast<double>(p.activation.beta), p.axis_flags);
  const BNNSFilterParameters* options = w.options();
  if (w.in.one_in(4)) {
    const size_t batch = w.batch(), x_step = w.step(p.i_desc), y_step = w.step(p.o_desc);
    p.i_desc.data = w.place(p.i_desc, batch, x_step);
    p.o_desc.data = w.place(p.o_desc, batch, y_step, p.i_desc.data);
    w.call("BNNSDirectApplyActivationBatch", {values_of(&p.o_desc, batch, y_step)},
           [&] { return BNNSDirectApplyActivationBatch(&p, options, batch, x_step, y_step); });
    return;
  }
  BNNSFilter filter =
      w.create("BNNSFilterCreateLayerActivation", [&] { return BNNSFilterCreateLayerActivation(&p, options); });
  if (!filter) return;
  const size_t alphas = p.activation.function == BNNSActivationFunctionPReLUPerChannel ? channels : 1;
  const BNNSNDArrayDescriptor alpha = w.describe(BNNSDataLayoutVector, {alphas}, BNNSDataTypeFloat32);
  const bool has_alpha = p.activation.function == BNNSActivationFunctionPReLUPerChannel ||
                         p.activation.function == BNNSActivationFunctionLeakyRectifiedLinear;
  run_generic(w, filter, {p.i_desc, p.o_desc, has_alpha ? &alpha : nullptr, nullptr, 4});
  if (w.flip()) run_generic(w, filter, {p.i_desc, p.o_desc, has_alpha ? &alpha : nullptr, nullptr, 4});
  w.destroy(filter);
}

void quantizations(World& w) {
  constexpr BNNSDataType kReal[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeInt32, BNNSDataTypeBFloat16};
  constexpr BNNSDataType kStored[] = {BNNSDataTypeInt8,   BNNSDataTypeUInt8, BNNSDataTypeInt16,
                                      BNNSDataTypeUInt16, BNNSDataTypeInt32, BNNSDataTypeUInt32};
  BNNSLayerParametersQuantization p = {};
  p.function = w.enumeration<BNNSQuantizerFunction>(2);
  BNNSDataType real = kReal[w.in.pick(3)], stored = kStored[w.in.pick(std::size(kStored))];
  if (w.odd()) stored = w.any_type();
  p.i_desc = some_array(w, p.function == BNNSQuantizerFunctionQuantize ? real : stored);
  p.o_desc = like(w, p.i_desc, p.function == BNNSQuantizerFunctionQuantize ? stored : real);
  const size_t batch = w.batch();
  const size_t rank = std::min<size_t>(8, static_cast<uint32_t>(p.i_desc.layout) >> 16);
  size_t length = 1;
  if (w.flip()) {
    const size_t axis = w.in.pick(rank + 1);
    p.axis_mask = size_t{1} << axis;
    length = axis == rank ? batch : p.i_desc.size[axis];
  }
  if (w.odd()) p.axis_mask = w.in.number();
  const BNNSDataType scale_type = w.in.one_in(3) ? w.any_type() : BNNSDataTypeFloat32;
  p.scale = w.optional(w.describe(BNNSDataLayoutVector, {length}, scale_type));
  p.bias = w.optional(w.describe(BNNSDataLayoutVector, {length}, scale_type));
  const size_t x_step = w.step(p.i_desc), y_step = w.step(p.o_desc);
  p.i_desc.data = w.place(p.i_desc, batch, x_step);
  p.o_desc.data = w.place(p.o_desc, batch, y_step, p.i_desc.data);
  w.say("x", p.i_desc), w.say("y", p.o_desc), w.say("scale", p.scale), w.say("bias", p.bias);
  w.say("  function %u mask %zx batch %zu steps %zu %zu\n", static_cast<unsigned>(p.function), p.axis_mask, batch, x_step,
        y_step);
  const BNNSFilterParameters* options = w.options();
  w.call("BNNSDirectApplyQuantizer", {values_of(&p.o_desc, batch, y_step)},
         [&] { return BNNSDirectApplyQuantizer(w.odd() ? nullptr : &p, options, batch, x_step, y_step); });
}

void clips(World& w) {
  BNNSNDArrayDescriptor x = some_array(w, w.float_type());
  x.data = w.place(x);
  BNNSNDArrayDescriptor y = like(w, x, w.in.one_in(3) ? w.float_type() : x.data_type);
  y.flags = static_cast<BNNSNDArrayFlags>(w.in.pick(2));
  y.data = w.place(y, 1, 0, x.data);
  const uint32_t axes = w.odd() ? static_cast<uint32_t>(w.in.number()) : static_cast<uint32_t>(w.in.pick(8));
  const float low = w.real(-0.5f), high = w.real(0.5f);
  w.say("x", x), w.say("y", y);
  w.say("  axes %x, %g to %g\n", axes, static_cast<double>(low), static_cast<double>(high));
  BNNSNDArrayDescriptor* to = w.odd() ? nullptr : &y;
  switch (w.in.pick(5)) {
    case 0: w.call("BNNSClipByValue", {values_of(to)}, [&] { return BNNSClipByValue(to, &x, low, high); }); break;
    case 1: w.call("BNNSClipByNorm", {values_of(to)}, [&] { return BNNSClipByNorm(to, &x, high, axes); }); break;
    case 2: {
      const size_t count = w.in.pick(4);
      std::vector<BNNSNDArrayDescriptor> xs(count, x), ys(count, y);
      std::vector<BNNSNDArrayDescriptor*> dest;
      std::vector<const BNNSNDArrayDescriptor*> src;
      std::vector<Written> written;
      for (size_t i = 0; i < count; ++i) {
        if (i > 0) {
          xs[i] = some_array(w, w.float_type());
          xs[i].data = w.place(xs[i]);
          ys[i] = like(w, xs[i], xs[i].data_type);
          ys[i].data = w.place(ys[i], 1, 0, xs[i].data);
        }
        dest.push_back(w.odd() ? nullptr : &ys[i]);
        src.push_back(&xs[i]);
        written.push_back(values_of(dest[i]));
      }
      const float norm = w.real(0.0f);
      w.call_vector("BNNSClipByGlobalNorm", written,
                    [&] { return BNNSClipByGlobalNorm(dest.data(), src.data(), count, high, norm); });
      break;
    }
    default: {
      // the axes that are left, in their order
      BNNSNDArrayDescriptor norm = {};
      const size_t rank = std::min<size_t>(8, static_cast<uint32_t>(x.layout) >> 16);
      size_t left = 0;
      for (size_t k = 0; k < rank; ++k)
        if (axes != 0 && !(axes >> k & 1)) norm.size[left++] = x.size[k];
      if (left == 0) norm.size[left++] = 1;
      const uint32_t order = static_cast<uint32_t>(x.layout) & 1;
      norm.layout = static_cast<BNNSDataLayout>(left << 16 | 0x8000 | (left == 1 ? 0 : order));
      norm.data_type = w.flip() ? x.data_type : w.float_type();
      w.restride(&norm);
      norm.flags = static_cast<BNNSNDArrayFlags>(w.in.pick(2));
      norm.data = w.place(norm, 1, 0, x.data);
      w.say("norm", norm);
      const auto type = w.odd() ? w.enumeration<BNNSNormType>(3) : BNNSL2Norm;
      w.call("BNNSComputeNorm", {values_of(&norm)}, [&] { return BNNSComputeNorm(&norm, &x, type, axes); });
      BNNSNDArrayDescriptor dx = w.gradient(x), dy = w.gradient(norm);
      // in and out lie as the gradients' descriptors say
      void* in = w.place(dx);
      void* out = w.place(dy);
      w.say("dx", dx), w.say("dy", dy);
      w.call("BNNSComputeNormBackward", {values_of(&dx)},
             [&] { return BNNSComputeNormBackward(in, &dx, out, &dy, type, axes); });
    }
  }
}

void optimizers(World& w) {
  const auto function = w.enumeration<BNNSOptimizerFunction>(12, 1);
  const size_t kind = static_cast<size_t>(function) - 1;
  union {
    BNNSOptimizerSGDMomentumFields sgd;
    BNNSOptimizerSGDMomentumWithClippingFields sgd_clipping;
    BNNSOptimizerAdamFields adam;
    BNNSOptimizerAdamWithClippingFields adam_clipping;
    BNNSOptimizerRMSPropFields rms;
    BNNSOptimizerRMSPropWithClippingFields rms_clipping;
  } f;
  std::memset(&f, 0, sizeof f);
  const auto penalty = w.enumeration<BNNSOptimizerRegularizationFunction>(3);
  const auto clipping = w.enumeration<BNNSOptimizerClippingFunction>(4);
  const float rate = w.real(0.1f), momentum = w.flip() ? 0.0f : w.real(0.9f), scale = w.real(1.0f), decay = w.real(0.01f);
  const float low = w.real(-0.5f), high = w.real(0.5f), norm = w.real(0.5f), known = w.real(0.0f);
  const bool a_flag = w.flip(), clips_values = w.flip();
  size_t roles = 0;
  const auto plain = [&](auto& fields) {
    fields.clip_gradients = clips_values, fields.clip_gradients_min = low, fields.clip_gradients_max = high;
  };
  const auto clipped = [&](auto& fields) {
    fields.clipping_func = clipping, fields.clip_gradients_min = low, fields.clip_gradients_max = high;
    fields.clip_gradients_max_norm = norm, fields.clip_gradients_use_norm = known;
  };
  const auto common = [&](auto& fields) {
    fields.learning_rate = rate, fields.gradient_scale = scale, fields.regularization_scale = decay;
    fields.regularization_func = penalty;
  };
  const auto sgd = [&](auto& fields) {
    common(fields);
    fields.momentum = momentum, fields.nesterov = a_flag;
    fields.sgd_momentum_variant = w.enumeration<BNNSOptimizerSGDMomentumVariant>(3);
    roles = 1;
  };
  const auto adam = [&](auto& fields) {
    common(fields);
    fields.beta1 = w.unit(0.9f), fields.beta2 = w.unit(0.99f), fields.epsilon = w.real(1e-5f);
    fields.time_step = static_cast<float>(w.few(5));
    roles = kind % 6 >= 4 ? 3 : 2;
  };
  const auto rms = [&](auto& fields) {
    common(fields);
    fields.alpha = w.unit(0.9f), fields.epsilon = w.real(1e-5f), fields.centered = a_flag, fields.momentum = momentum;
    roles = 3;
  };
  switch (kind) {
    case 0: sgd(f.sgd), plain(f.sgd); break;
    case 6: sgd(f.sgd_clipping), clipped(f.sgd_clipping); break;
    case 2: rms(f.rms), plain(f.rms); break;
    case 8: rms(f.rms_clipping), clipped(f.rms_clipping); break;
    case 1: case 3: case 4: case 5: adam(f.adam), plain(f.adam); break;
    default: adam(f.adam_clipping), clipped(f.adam_clipping);
  }
  const size_t count = w.in.pick(4);
  std::vector<BNNSNDArrayDescriptor> arrays((2 + roles) * count);
  std::vector<BNNSNDArrayDescriptor*> parameters, accumulators;
  std::vector<const BNNSNDArrayDescriptor*> gradients;
  std::vector<Written> written;
  for (size_t role = 0; role < 2 + roles; ++role) {
    for (size_t i = 0; i < count; ++i) {
      BNNSNDArrayDescriptor& d = arrays[role * count + i];
      d = role == 0 ? some_array(w, BNNSDataTypeFloat32) : arrays[i];
      if (!w.in.one_in(8)) std::fill_n(d.stride, BNNS_MAX_TENSOR_DIMENSION, size_t{0});
      d.data = w.place(d);
      if (role == 0) parameters.push_back(w.odd() ? nullptr : &d);
      if (role == 1) gradients.push_back(w.odd() ? nullptr : &d);
      if (role > 1) accumulators.push_back(w.odd() ? nullptr : &d);
      if (role != 1) written.push_back(values_of(&d));
    }
  }
  const bool has_accumulators = !w.in.one_in(8);
  const bool has_fields = !w.odd();
  w.say("  function %u, %zu parameters\n", static_cast<unsigned>(function), count);
  for (size_t i = 0; i < arrays.size(); ++i) w.say("array", arrays[i]);
  const BNNSFilterParameters* options = w.options();
  for (size_t steps = 1 + w.in.pick(2); steps > 0; --steps)
    w.call_vector("BNNSOptimizerStep", written, [&] {
      return BNNSOptimizerStep(function, has_fields ? &f : nullptr, count, parameters.data(), gradients.data(),
                               has_accumulators ? accumulators.data() : nullptr, options);
    });
}

void randoms(World& w) {
  const auto method = w.odd() ? w.enumeration<BNNSRandomGeneratorMethod>(2) : BNNSRandomGeneratorMethodAES_CTR;
  const uint64_t seed = w.in.number();
  const BNNSFilterParameters* options = w.options();
  BNNSRandomGenerator fresh =
      w.create("BNNSCreateRandomGenerator", [&] { return BNNSCreateRandomGenerator(method, options); });
  BNNSRandomGenerator generator = w.create("BNNSCreateRandomGeneratorWithSeed", [&] {
    return BNNSCreateRandomGeneratorWithSeed(method, seed, options);
  });
  if (w.odd()) generator = w.no_filter();
  const size_t bytes = w.ask("BNNSRandomGeneratorStateSize", size_t{0},
                             [&] { return BNNSRandomGeneratorStateSize(generator); });
  const size_t room = w.odd() ? w.in.pick(64) : bytes;
  void* state = w.raw(room, BNNSDataTypeUInt8);
  for (size_t calls = 1 + w.in.pick(5); calls > 0; --calls) {
    BNNSNDArrayDescriptor d = some_array(w, w.in.one_in(3) ? w.any_type() : w.float_type());
    d.data = w.place(d);
    const float a = w.real(-0.5f), b = w.real(0.5f);
    const auto bound = [&] { return w.in.one_in(4) ? static_cast<int64_t>(w.in.number()) : w.in.byte() - 128; };
    const int64_t low = bound(), high = bound();
    w.say("out", d);
    switch (w.in.pick(7)) {
      case 0:
        w.call("BNNSRandomFillUniformFloat", {values_of(&d)},
               [&] { return BNNSRandomFillUniformFloat(generator, &d, a, b); });
        break;
      case 1:
        w.call("BNNSRandomFillUniformInt", {values_of(&d)},
               [&] { return BNNSRandomFillUniformInt(generator, &d, low, high); });
        break;
      case 2:
        w.call("BNNSRandomFillNormalFloat", {values_of(&d)},
               [&] { return BNNSRandomFillNormalFloat(generator, &d, a, b); });
        break;
      case 3: {
        BNNSNDArrayDescriptor p = d;
        const size_t rank = std::min<size_t>(8, static_cast<uint32_t>(d.layout) >> 16);
        if (rank > 0 && !w.odd()) p.size[rank - 1] = w.extent();
        w.restride(&p);
        p.data = w.place(p);
        const bool logs = w.flip();
        w.say("probabilities", p);
        w.call("BNNSRandomFillCategoricalFloat", {values_of(&d)},
               [&] { return BNNSRandomFillCategoricalFloat(generator, &d, &p, logs); });
        break;
      }
      case 4:
        w.call("BNNSRandomGeneratorGetState", {bytes_at(state, room)},
               [&] { return BNNSRandomGeneratorGetState(generator, room, state); });
        break;
      case 5:
        w.call("BNNSRandomGeneratorSetState", {}, [&] { return BNNSRandomGeneratorSetState(generator, room, state); });
        break;
      default:
        w.call("BNNSRandomGeneratorGetState", {bytes_at(state, room)},
               [&] { return BNNSRandomGeneratorGetState(generator, room, state); });
        w.call("BNNSRandomGeneratorSetState", {}, [&] { return BNNSRandomGeneratorSetState(fresh, room, state); });
    }
  }
}

void small_calls(World& w) {
  const auto layout = w.odd() ? static_cast<BNNSDataLayout>(w.in.number()) : some_array(w, BNNSDataTypeFloat32).layout;
  w.ask("BNNSDataLayoutGetRank", SIZE_MAX, [&] { return BNNSDataLayoutGetRank(layout); });
  BNNSNDArrayDescriptor d = w.with_data(some_array(w, w.any_type()));
  w.say("array", d);
  const Where at = locate(d);
  const bool has_array = !w.odd();
  const size_t bytes = w.ask("BNNSNDArrayGetDataSize", size_t{0},
                             [&] { return BNNSNDArrayGetDataSize(has_array ? &d : nullptr); });
  if (bytes != 0 && (!at.sound || bytes != at.bytes)) w.broken("BNNSNDArrayGetDataSize is wrong");
  BNNSTensor t = {};
  t.data_type = w.any_type();
  t.rank = static_cast<uint8_t>(w.odd() ? w.in.byte() : w.in.pick(9));
  for (size_t k = 0; k < BNNS_MAX_TENSOR_DIMENSION; ++k) {
    t.shape[k] = w.odd() ? static_cast<ssize_t>(w.in.number()) : static_cast<ssize_t>(w.extent());
    t.stride[k] = w.odd() ? static_cast<ssize_t>(w.in.number()) : static_cast<ssize_t>(w.extent());
  }
  const bool has_tensor = !w.odd();
  w.ask("BNNSTensorGetAllocationSize", SIZE_MAX,
        [&] { return BNNSTensorGetAllocationSize(has_tensor ? &t : nullptr); });
  BNNSFilter none = w.no_filter();
  w.question(none);
  w.refuse("BNNSFilterApply", [&] { return BNNSFilterApply(none, d.data, d.data); });
  w.refuse("BNNSFilterApplyBatch", [&] { return BNNSFilterApplyBatch(none, 1, d.data, 0, d.data, 0); });
  w.refuse("BNNSFilterApplyTwoInput", [&] { return BNNSFilterApplyTwoInput(none, d.data, d.data, d.data); });
  w.refuse("BNNSFilterApplyTwoInputBatch",
           [&] { return BNNSFilterApplyTwoInputBatch(none, 1, d.data, 0, d.data, 0, d.data, 0); });
  w.refuse("BNNSFilterApplyBackwardBatch", [&] {
    return BNNSFilterApplyBackwardBatch(none, 1, d.data, 0, &d, 0, d.data, 0, &d, 0, &d, &d);
  });
  w.refuse("BNNSFilterApplyBackwardTwoInputBatch", [&] {
    return BNNSFilterApplyBackwardTwoInputBatch(none, 1, d.data, 0, &d, 0, d.data, 0, &d, 0, d.data, 0, &d, 0, &d, &d);
  });
  w.refuse("BNNSPoolingFilterApplyBatch",
           [&] { return BNNSPoolingFilterApplyBatch(none, 1, d.data, 0, d.data, 0, nullptr, 0); });
  w.refuse("BNNSNormalizationFilterApplyBatch",
           [&] { return BNNSNormalizationFilterApplyBatch(none, 1, d.data, 0, d.data, 0, true); });
  w.refuse("BNNSFusedFilterApplyBatch",
           [&] { return BNNSFusedFilterApplyBatch(none, 1, d.data, 0, d.data, 0, true); });
  w.refuse("BNNSLossFilterApplyBatch", [&] {
    return BNNSLossFilterApplyBatch(none, 1, d.data, 0, d.data, 0, nullptr, 0, d.data, &d, 0);
  });
  w.refuse("BNNSApplyMultiheadAttention", [&] {
    return BNNSApplyMultiheadAttention(none, 1, d.data, 0, d.data, 0, nullptr, 0, d.data, 0, d.data, 0, nullptr, nullptr,
                                       nullptr, nullptr, nullptr);
  });
  const auto& unbuilt = kUnbuilt[w.in.pick(std::size(kUnbuilt))];
  if (obn_is_implemented(unbuilt.name) == 0) {
    w.call(unbuilt.name, {}, [&] {
      call_blindly(unbuilt.address);
      return -1;  // what it returned is of many types
    });
    if (std::string(obn_last_error()) != std::string(unbuilt.name) + ": not implemented") w.broken("did not say so");
  }
}

}  // namespace fuzz

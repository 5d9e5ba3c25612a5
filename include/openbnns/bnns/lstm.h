/* Stacked, optionally bidirectional long short-term memory. */
#ifndef OPENBNNS_BNNS_LSTM_H
#define OPENBNNS_BNNS_LSTM_H

#include "activation.h"

OBN_C_BEGIN

/* Bits of BNNSLayerParametersLSTM.lstm_flags. */
OBN_ENUM(BNNSLayerFlags) {
    BNNSLayerFlagsLSTMBidirectional = 1,      /* a second pass from the end to the start */
    /* sigmoid gates, tanh candidate and hidden; activation fields unread */
    BNNSLayerFlagsLSTMDefaultActivations = 2,
};

/* One gate: activation(b + iw*x + hw*h + cw*c). D is the number of directions. */
typedef struct BNNSLSTMGateDescriptor {
    /* (layers, D, hidden, input); [1] for later layers if widths differ */
    BNNSNDArrayDescriptor iw_desc[2];
    BNNSNDArrayDescriptor hw_desc;    /* (layers, D, hidden, hidden) */
    BNNSNDArrayDescriptor cw_desc;    /* (layers, D, hidden, hidden); optional */
    BNNSNDArrayDescriptor b_desc;     /* (layers, D, hidden); optional */
    BNNSActivation activation;        /* of the gate */
} BNNSLSTMGateDescriptor;

/* Sequence, hidden state and cell state on one side of the layer. */
typedef struct BNNSLSTMDataDescriptor {
    BNNSNDArrayDescriptor data_desc;       /* sequence, SNE or NSE */
    /* (layers, D, batch, hidden); input without data = zeros */
    BNNSNDArrayDescriptor hidden_desc;
    BNNSNDArrayDescriptor cell_state_desc; /* same shape and rule */
} BNNSLSTMDataDescriptor;

/* LSTM layer. Descriptor sizes left at 0 are filled in from the counts. */
typedef struct BNNSLayerParametersLSTM {
    size_t input_size;                         /* features of a step */
    size_t hidden_size;                        /* width of hidden and cell state */
    size_t batch_size;                         /* samples */
    size_t num_layers;                         /* stacked cells */
    size_t seq_len;                            /* steps */
    float dropout;                             /* between stacked layers */
    uint32_t lstm_flags;                       /* BNNSLayerFlags */
    /* samples per step, seq_len unsigned ints; optional */
    BNNSNDArrayDescriptor sequence_descriptor;
    BNNSLSTMDataDescriptor input_descriptor;   /* input, first hidden and cell state */
    BNNSLSTMDataDescriptor output_descriptor;  /* output, last hidden and cell state */
    BNNSLSTMGateDescriptor input_gate;         /* sigmoid by default */
    BNNSLSTMGateDescriptor forget_gate;        /* sigmoid by default */
    BNNSLSTMGateDescriptor candidate_gate;     /* tanh by default */
    BNNSLSTMGateDescriptor output_gate;        /* sigmoid by default; its cw sees the new cell */
    BNNSActivation hidden_activation;          /* tanh by default */
} BNNSLayerParametersLSTM;

/* LSTM on the data of layer_params. With a cache of at least BNNSComputeLSTMTrainingCacheCapacity
 * bytes it keeps what the backward call can use. Returns 0, or -1 on failure. May be NULL:
 * filter_params, training_cache_ptr. */
OBN_API int BNNSDirectApplyLSTMBatchTrainingCaching(const BNNSLayerParametersLSTM *layer_params,
                                                    const BNNSFilterParameters *filter_params,
                                                    void *training_cache_ptr,
                                                    size_t training_cache_capacity);

/* Gradients of the LSTM into the data of layer_delta_params. Without a cache the forward pass is
 * repeated. Returns 0, or -1 on failure. May be NULL: filter_params, training_cache_ptr. */
OBN_API int BNNSDirectApplyLSTMBatchBackward(const BNNSLayerParametersLSTM *layer_params,
                                             const BNNSLayerParametersLSTM *layer_delta_params,
                                             const BNNSFilterParameters *filter_params,
                                             const void *training_cache_ptr,
                                             size_t training_cache_capacity);

/* Bytes of training cache; SIZE_MAX on failure. */
OBN_API size_t BNNSComputeLSTMTrainingCacheCapacity(const BNNSLayerParametersLSTM *layer_params);

OBN_C_END

#endif

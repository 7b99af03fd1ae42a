/* backend/cuda/cudnn_api.h - numbers and prototypes of cuDNN 9's graph interface, as far as they
 * are used here, as its documentation has them (cudnn_graph_v9.h). For cudnn_internal.h alone: the
 * names are short. */
#ifndef ROSE_BACKEND_CUDA_CUDNN_API_H
#define ROSE_BACKEND_CUDA_CUDNN_API_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3000, NOT_SUPPORTED_END = 4000 }; /* cudnnStatus_t */

enum { /* cudnnBackendDescriptorType_t */
       POINTWISE = 0,
       ENGINE = 2,
       ENGINE_CONFIG = 3,
       HEURISTICS = 4,
       EXECUTION_PLAN = 5,
       POINTWISE_OPERATION = 13,
       OPERATION_GRAPH = 15,
       VARIANT_PACK = 16,
       TENSOR = 17,
       MATMUL = 18,
       MATMUL_OPERATION = 19,
       REDUCTION = 21,
       REDUCTION_OPERATION = 22,
       DEVICE = 38
};

enum { /* cudnnBackendAttributeName_t */
       POINTWISE_MODE = 0,
       POINTWISE_PRECISION = 1,
       POINTWISE_AXIS = 9,
       HEURISTICS_MODE = 200,
       HEURISTICS_GRAPH = 201,
       HEURISTICS_RESULTS = 202,
       HEURISTICS_DEVICE = 204,
       CONFIG_ENGINE = 300,
       PLAN_HANDLE = 400,
       PLAN_CONFIG = 401,
       PLAN_WORKSPACE = 402,
       PLAN_DEVICE = 407,
       POINTWISE_DESCRIPTOR = 750,
       POINTWISE_X = 751,
       POINTWISE_B = 752,
       POINTWISE_Y = 753,
       POINTWISE_ALPHA1 = 754,
       POINTWISE_ALPHA2 = 755,
       POINTWISE_T = 758,
       GRAPH_HANDLE = 800,
       GRAPH_OPERATIONS = 801,
       TENSOR_ALIGNMENT = 900,
       TENSOR_TYPE = 901,
       TENSOR_DIMS = 902,
       TENSOR_STRIDES = 903,
       TENSOR_ID = 906,
       TENSOR_VIRTUAL = 907,
       TENSOR_BY_VALUE = 908,
       TENSOR_RAGGED = 913,
       VARIANT_IDS = 1000,
       VARIANT_POINTERS = 1001,
       VARIANT_WORKSPACE = 1003,
       ENGINE_INDEX = 1301,
       MATMUL_PRECISION = 1500,
       MATMUL_A = 1520,
       MATMUL_B = 1521,
       MATMUL_C = 1522,
       MATMUL_DESCRIPTOR = 1523,
       MATMUL_M = 1525,
       MATMUL_N = 1526,
       MATMUL_K = 1527,
       REDUCTION_OPERATOR = 1600,
       REDUCTION_PRECISION = 1601,
       REDUCTION_X = 1610,
       REDUCTION_Y = 1611,
       REDUCTION_DESCRIPTOR = 1612,
       DEVICE_JSON = 2702
};

enum { /* cudnnBackendAttributeType_t */
       IS_HANDLE = 0,
       IS_TYPE = 1,
       IS_BOOL = 2,
       IS_INT64 = 3,
       IS_FLOAT = 4,
       IS_POINTER = 6,
       IS_HEURISTICS = 8,
       IS_POINTWISE = 14,
       IS_DESCRIPTOR = 15,
       IS_REDUCTION = 18,
       IS_CHAR = 24
};

enum { T_FLOAT = 0, T_HALF = 2, T_INT32 = 4, T_BF16 = 9, T_BOOLEAN = 11 }; /* cudnnDataType_t */

enum { /* cudnnPointwiseMode_t */
       OP_ADD = 0,
       OP_MUL = 1,
       OP_DIV = 6,
       OP_SUB = 9,
       OP_EXP = 13,
       OP_LOG = 15,
       OP_GE = 303,
       OP_LT = 304,
       OP_AND = 400,
       OP_INDEX = 501,
       OP_SELECT = 601
};

enum { REDUCE_ADD = 0, REDUCE_MAX = 3 }; /* cudnnReduceTensorOp_t */
enum { HEURISTICS_FALLBACK = 2, HEURISTICS_A = 3 };

/* A descriptor and a handle are pointers; a status is an int. */
typedef struct rose_cudnn_functions {
    size_t (*version)(void);
    const char *(*status_name)(int);
    void (*last_error)(char *, size_t);
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, cudaStream_t);
    int (*make)(int, void **);
    int (*drop)(void *);
    int (*finalize)(void *);
    int (*set)(void *, int, int, int64_t, const void *);
    int (*get)(void *, int, int, int64_t, int64_t *, void *);
    int (*execute)(void *, void *, void *);
} rose_cudnn_functions;

#endif

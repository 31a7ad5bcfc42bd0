//! Driver functions that are not emulated. They exist so that a program which looks them up gets a reason and not a crash.

use crate::driver::locked;
use crate::fault::{Code, Fault};

/// Each takes no arguments: the C calling convention lets a function leave those it gets alone.
macro_rules! unsupported {
    ($($name:ident),* $(,)?) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> u32 {
                refuse(stringify!($name))
            }
        )*
        pub const SYMBOLS: &[(&str, *const ())] = &[$((stringify!($name), $name as *const ())),*];
    };
}

fn refuse(symbol: &'static str) -> u32 {
    let name = super::public_name(symbol);
    locked(name, |_| Err(Fault::new(Code::NotSupported, format!("{name} is not emulated"))))
}

unsupported! {
    cuArray3DCreate_v2, cuArray3DGetDescriptor_v2, cuArrayCreate_v2, cuArrayDestroy, cuArrayGetDescriptor_v2,
    cuArrayGetMemoryRequirements, cuArrayGetPlane, cuArrayGetSparseProperties, cuCheckpointProcessCheckpoint,
    cuCheckpointProcessGetRestoreThreadId, cuCheckpointProcessGetState, cuCheckpointProcessLock,
    cuCheckpointProcessRestore, cuCheckpointProcessUnlock, cuCoredumpDeregisterCompleteCallback,
    cuCoredumpDeregisterStartCallback, cuCoredumpGetAttribute, cuCoredumpGetAttributeGlobal,
    cuCoredumpRegisterCompleteCallback, cuCoredumpRegisterStartCallback, cuCoredumpSetAttribute,
    cuCoredumpSetAttributeGlobal, cuCtxAttach, cuCtxDetach, cuCtxDisablePeerAccess, cuCtxEnablePeerAccess,
    cuCtxFromGreenCtx, cuCtxGetDevResource, cuCtxGetDevice_v2, cuCtxGetExecAffinity, cuCtxRecordEvent,
    cuCtxSynchronize_v2, cuCtxWaitEvent, cuDestroyExternalMemory, cuDestroyExternalSemaphore,
    cuDevResourceGenerateDesc, cuDevSmResourceSplit, cuDevSmResourceSplitByCount, cuDeviceGetCliqueCount,
    cuDeviceGetCliqueInfo, cuDeviceGetDevResource, cuDeviceGetExecAffinitySupport, cuDeviceGetFabricClusterUuid,
    cuDeviceGetGraphMemAttribute, cuDeviceGetHostAtomicCapabilities, cuDeviceGetLuid,
    cuDeviceGetNvSciSyncAttributes, cuDeviceGetP2PAtomicCapabilities, cuDeviceGetP2PAttribute,
    cuDeviceGetProperties, cuDeviceGetTexture1DLinearMaxWidth, cuDeviceGraphMemTrim,
    cuDeviceRegisterAsyncNotification, cuDeviceSetGraphMemAttribute, cuDeviceUnregisterAsyncNotification,
    cuExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedMipmappedArray, cuFlushGPUDirectRDMAWrites,
    cuFuncSetBlockShape, cuFuncSetSharedSize, cuGraphAddBatchMemOpNode, cuGraphAddChildGraphNode,
    cuGraphAddDependencies, cuGraphAddDependencies_v2, cuGraphAddEmptyNode, cuGraphAddEventRecordNode,
    cuGraphAddEventWaitNode, cuGraphAddExternalSemaphoresSignalNode, cuGraphAddExternalSemaphoresWaitNode,
    cuGraphAddHostNode, cuGraphAddKernelNode, cuGraphAddKernelNode_v2, cuGraphAddMemAllocNode,
    cuGraphAddMemFreeNode, cuGraphAddMemcpyNode, cuGraphAddMemsetNode, cuGraphAddNode, cuGraphAddNode_v2,
    cuGraphAddNode_v3, cuGraphBatchMemOpNodeGetParams, cuGraphBatchMemOpNodeSetParams,
    cuGraphChildGraphNodeGetGraph, cuGraphClone, cuGraphConditionalHandleCreate, cuGraphCreate,
    cuGraphDebugDotPrint, cuGraphDestroy, cuGraphDestroyNode, cuGraphEventRecordNodeGetEvent,
    cuGraphEventRecordNodeSetEvent, cuGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeSetEvent,
    cuGraphExecBatchMemOpNodeSetParams, cuGraphExecChildGraphNodeSetParams, cuGraphExecDestroy,
    cuGraphExecEventRecordNodeSetEvent, cuGraphExecEventWaitNodeSetEvent,
    cuGraphExecExternalSemaphoresSignalNodeSetParams, cuGraphExecExternalSemaphoresWaitNodeSetParams,
    cuGraphExecGetFlags, cuGraphExecGetId, cuGraphExecHostNodeSetParams, cuGraphExecKernelNodeSetParams,
    cuGraphExecKernelNodeSetParams_v2, cuGraphExecMemcpyNodeSetParams, cuGraphExecMemsetNodeSetParams,
    cuGraphExecNodeSetParams, cuGraphExecUpdate, cuGraphExecUpdate_v2, cuGraphExternalSemaphoresSignalNodeGetParams,
    cuGraphExternalSemaphoresSignalNodeSetParams, cuGraphExternalSemaphoresWaitNodeGetParams,
    cuGraphExternalSemaphoresWaitNodeSetParams, cuGraphGetEdges, cuGraphGetEdges_v2, cuGraphGetId, cuGraphGetNodes,
    cuGraphGetRootNodes, cuGraphHostNodeGetParams, cuGraphHostNodeSetParams, cuGraphInstantiateWithFlags,
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, cuGraphInstantiate_v2,
    cuGraphKernelNodeCopyAttributes, cuGraphKernelNodeGetAttribute, cuGraphKernelNodeGetParams,
    cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeSetAttribute, cuGraphKernelNodeSetParams,
    cuGraphKernelNodeSetParams_v2, cuGraphLaunch, cuGraphLaunch_ptsz, cuGraphMemAllocNodeGetParams,
    cuGraphMemFreeNodeGetParams, cuGraphMemcpyNodeGetParams, cuGraphMemcpyNodeSetParams, cuGraphMemsetNodeGetParams,
    cuGraphMemsetNodeSetParams, cuGraphNodeFindInClone, cuGraphNodeGetContainingGraph, cuGraphNodeGetDependencies,
    cuGraphNodeGetDependencies_v2, cuGraphNodeGetDependentNodes, cuGraphNodeGetDependentNodes_v2,
    cuGraphNodeGetEnabled, cuGraphNodeGetLocalId, cuGraphNodeGetParams, cuGraphNodeGetToolsId, cuGraphNodeGetType,
    cuGraphNodeSetEnabled, cuGraphNodeSetParams, cuGraphNodeSetParams_v2, cuGraphReleaseUserObject,
    cuGraphRemoveDependencies, cuGraphRemoveDependencies_v2, cuGraphRetainUserObject, cuGraphUpload,
    cuGraphUpload_ptsz, cuGraphicsMapResources, cuGraphicsMapResources_ptsz,
    cuGraphicsResourceGetMappedMipmappedArray, cuGraphicsResourceGetMappedPointer_v2,
    cuGraphicsResourceSetMapFlags_v2, cuGraphicsSubResourceGetMappedArray, cuGraphicsUnmapResources,
    cuGraphicsUnmapResources_ptsz, cuGraphicsUnregisterResource, cuGreenCtxCreate, cuGreenCtxDestroy,
    cuGreenCtxGetDevResource, cuGreenCtxGetId, cuGreenCtxRecordEvent, cuGreenCtxStreamCreate, cuGreenCtxWaitEvent,
    cuImportExternalMemory, cuImportExternalSemaphore, cuIpcCloseMemHandle, cuIpcGetEventHandle, cuIpcGetMemHandle,
    cuIpcOpenEventHandle, cuIpcOpenMemHandle_v2, cuKernelGetParamCount, cuKernelGetParamInfo, cuLaunch,
    cuLaunchCooperativeKernelMultiDevice, cuLaunchGrid, cuLaunchGridAsync, cuLaunchHostFunc_v2,
    cuLibraryEnumerateKernels, cuLibraryGetManaged, cuLibraryGetUnifiedFunction, cuLinkAddData_v2, cuLinkAddFile_v2,
    cuLinkComplete, cuLinkCreate_v2, cuLinkDestroy, cuLogicalEndpointAddDevice, cuLogicalEndpointBindAddr,
    cuLogicalEndpointBindMem, cuLogicalEndpointCreate, cuLogicalEndpointDestroy, cuLogicalEndpointExport,
    cuLogicalEndpointGetLimits, cuLogicalEndpointIdRelease, cuLogicalEndpointIdReserve, cuLogicalEndpointImport,
    cuLogicalEndpointQuery, cuLogicalEndpointUnbind, cuLogsCurrent, cuLogsDumpToFile, cuLogsDumpToMemory,
    cuLogsRegisterCallback, cuLogsUnregisterCallback, cuMemAddressFree, cuMemAddressReserve,
    cuMemBatchDecompressAsync, cuMemBatchDecompressAsync_ptsz, cuMemCreate, cuMemDiscardAndPrefetchBatchAsync,
    cuMemDiscardAndPrefetchBatchAsync_ptsz, cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz,
    cuMemExportToShareableHandle, cuMemGetAccess, cuMemGetAllocationGranularity,
    cuMemGetAllocationPropertiesFromHandle, cuMemGetDefaultMemPool, cuMemGetHandleForAddressRange,
    cuMemGetLocationInfo, cuMemGetMemPool, cuMemImportFromShareableHandle, cuMemMap, cuMemMapArrayAsync,
    cuMemMapArrayAsync_ptsz, cuMemPoolExportPointer, cuMemPoolExportToShareableHandle, cuMemPoolGetAccess,
    cuMemPoolImportFromShareableHandle, cuMemPoolImportPointer, cuMemPoolSetAccess, cuMemPrefetchBatchAsync,
    cuMemPrefetchBatchAsync_ptsz, cuMemRangeGetAttribute, cuMemRangeGetAttributes, cuMemRelease,
    cuMemRetainAllocationHandle, cuMemSetAccess, cuMemSetMemPool, cuMemUnmap, cuMemcpy3DAsync_v2,
    cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz,
    cuMemcpy3DPeer, cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, cuMemcpy3DPeer_ptds,
    cuMemcpy3DWithAttributesAsync, cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds,
    cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds, cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz, cuMemcpyAtoH_v2,
    cuMemcpyAtoH_v2_ptds, cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz, cuMemcpyDtoA_v2,
    cuMemcpyDtoA_v2_ptds, cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz, cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds,
    cuMemcpyWithAttributesAsync, cuMipmappedArrayCreate, cuMipmappedArrayDestroy, cuMipmappedArrayGetLevel,
    cuMipmappedArrayGetMemoryRequirements, cuMipmappedArrayGetSparseProperties, cuModuleGetSurfRef,
    cuModuleGetTexRef, cuMulticastAddDevice, cuMulticastBindAddr, cuMulticastBindAddr_v2, cuMulticastBindMem,
    cuMulticastBindMem_v2, cuMulticastCreate, cuMulticastGetGranularity, cuMulticastUnbind,
    cuOccupancyMaxActiveClusters, cuOccupancyMaxPotentialClusterSize, cuParamSetSize, cuParamSetTexRef, cuParamSetf,
    cuParamSeti, cuParamSetv, cuProfilerInitialize, cuSignalExternalSemaphoresAsync,
    cuSignalExternalSemaphoresAsync_ptsz, cuStreamBatchMemOp, cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz,
    cuStreamBeginCaptureToCig, cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz,
    cuStreamBeginRecaptureToGraph, cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz, cuStreamEndCaptureToCig,
    cuStreamGetAttribute, cuStreamGetAttribute_ptsz, cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2,
    cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz,
    cuStreamGetDevResource, cuStreamGetGreenCtx, cuStreamSetAttribute, cuStreamSetAttribute_ptsz,
    cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2,
    cuStreamUpdateCaptureDependencies_v2_ptsz, cuStreamWaitValue32, cuStreamWaitValue32_v2,
    cuStreamWaitValue32_v2_ptsz, cuStreamWaitValue64, cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz,
    cuStreamWriteValue32, cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz, cuStreamWriteValue64,
    cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz, cuSurfObjectCreate, cuSurfObjectDestroy,
    cuSurfObjectGetResourceDesc, cuSurfRefGetArray, cuSurfRefSetArray, cuTensorMapEncodeIm2col,
    cuTensorMapEncodeIm2colWide, cuTensorMapEncodeTiled, cuTensorMapReplaceAddress, cuTexObjectCreate,
    cuTexObjectDestroy, cuTexObjectGetResourceDesc, cuTexObjectGetResourceViewDesc, cuTexObjectGetTextureDesc,
    cuTexRefCreate, cuTexRefDestroy, cuTexRefGetAddressMode, cuTexRefGetAddress_v2, cuTexRefGetArray,
    cuTexRefGetBorderColor, cuTexRefGetFilterMode, cuTexRefGetFlags, cuTexRefGetFormat, cuTexRefGetMaxAnisotropy,
    cuTexRefGetMipmapFilterMode, cuTexRefGetMipmapLevelBias, cuTexRefGetMipmapLevelClamp, cuTexRefGetMipmappedArray,
    cuTexRefSetAddress2D_v3, cuTexRefSetAddressMode, cuTexRefSetAddress_v2, cuTexRefSetArray,
    cuTexRefSetBorderColor, cuTexRefSetFilterMode, cuTexRefSetFlags, cuTexRefSetFormat, cuTexRefSetMaxAnisotropy,
    cuTexRefSetMipmapFilterMode, cuTexRefSetMipmapLevelBias, cuTexRefSetMipmapLevelClamp, cuTexRefSetMipmappedArray,
    cuUserObjectCreate, cuUserObjectRelease, cuUserObjectRetain, cuWaitExternalSemaphoresAsync,
    cuWaitExternalSemaphoresAsync_ptsz,
}

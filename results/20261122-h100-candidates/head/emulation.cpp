
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <thread>
#include <vector>
#include <pthread.h>
#define ROSE_DEVICE static inline
#define __CUDA_ARCH__ 900
struct uint4 { uint32_t x,y,z,w; }; struct float2 { float x,y; }; struct dim { uint32_t x; };
static thread_local dim threadIdx, blockIdx; static dim gridDim;
enum { CHUNK = 6, ROSE_CUDA_HEAD_K = 1536, ROSE_CUDA_EPI_LOGITS = 3 }; 
#define ROSE_ALL_LANES 0xffffffffu
struct rose_cuda_linear { const void *w; const float *bias; uint32_t k, k_pad, n; };
struct rose_cuda_io { const void *h; uint32_t rows; int epilogue; float *logits; uint32_t ld_logits; unsigned long long *key; };
struct pair_inputs { float2 bias, old; uint32_t slot; };
static uint4 g_rows[32*1536*2/16]; static uint64_t g_arrived[8]; static unsigned long long g_keys[4*32];
static pthread_barrier_t g_block, g_warp[4];
static uint32_t g_ex[4][32][8]; static unsigned long long g_ex64[4][32];
static uint32_t W(){return threadIdx.x/32;} static uint32_t L(){return threadIdx.x%32;}
static void wsync(){pthread_barrier_wait(&g_warp[W()]);}
static void __syncthreads(){pthread_barrier_wait(&g_block);}
static void pdl_launch(){} static void pdl_wait(){}
static const uint4 *g_w0, *g_w1; static int g_bad;
static uint4 load_early(const uint4*p){ if(p<g_w0||p>=g_w1){g_bad++; return uint4{0,0,0,0};} return *p; }
static void bulk_init(uint64_t*b,uint32_t){*b=1ull<<40;}
static void bulk_expect(uint64_t*b,uint32_t n){__atomic_fetch_add((int64_t*)b,(int64_t)n-(1ll<<40),__ATOMIC_SEQ_CST);}
static void bulk_copy(void*to,const void*from,uint32_t n,uint64_t*b){memcpy(to,from,n);__atomic_fetch_sub((int64_t*)b,(int64_t)n,__ATOMIC_SEQ_CST);}
static void bulk_wait(uint64_t*b,uint32_t){while(__atomic_load_n((int64_t*)b,__ATOMIC_SEQ_CST)!=0)sched_yield();}
static uint64_t __cvta_generic_to_shared(const void*p){return (const char*)p-(const char*)g_rows;}
static void ldmatrix4_at(uint32_t r[4],uint32_t a){ // lane i gives the address of row i%8 of matrix i/8
  g_ex[W()][L()][0]=a; wsync(); uint32_t t=L()%4,g=L()/4;
  for(int m=0;m<4;m++){ const uint16_t*row=(const uint16_t*)((const char*)g_rows+g_ex[W()][m*8+g][0]); memcpy(&r[m],row+t*2,4);} wsync(); }
struct half_tag{}; 
static float f(uint16_t h){_Float16 x;memcpy(&x,&h,2);return (float)x;}
static void mma(float c[4],const uint32_t a[4],uint32_t b0,uint32_t b1,const half_tag*){
  uint32_t*e=g_ex[W()][L()]; for(int i=0;i<4;i++)e[i]=a[i]; e[4]=b0;e[5]=b1; wsync();
  uint32_t g=L()/4,t=L()%4; 
  auto A=[&](uint32_t row,uint32_t k){uint32_t lane=row%8*4+k%8/2; uint32_t v=g_ex[W()][lane][(row/8)+(k/8)*2]; return f((uint16_t)(k%2?v>>16:v));};
  auto Bm=[&](uint32_t k,uint32_t n){uint32_t lane=n*4+k%8/2; uint32_t v=g_ex[W()][lane][4+k/8]; return f((uint16_t)(k%2?v>>16:v));};
  for(int i=0;i<4;i++){uint32_t row=g+(i/2)*8,col=t*2+i%2; double s=c[i]; for(uint32_t k=0;k<16;k++)s+=(double)A(row,k)*Bm(k,col); c[i]=(float)s;}
  wsync(); }
static unsigned long long __shfl_xor_sync(uint32_t,unsigned long long v,int x){g_ex64[W()][L()]=v;wsync();unsigned long long r=g_ex64[W()][L()^x];wsync();return r;}
static void atomicMax(unsigned long long*p,unsigned long long v){unsigned long long o=__atomic_load_n(p,__ATOMIC_SEQ_CST);while(o<v&&!__atomic_compare_exchange_n(p,&o,v,false,__ATOMIC_SEQ_CST,__ATOMIC_SEQ_CST));}
static uint32_t order_of(float x){if(x!=x)return 0;uint32_t b;x+=0.0f;memcpy(&b,&x,4);return b>>31?~b:b|0x80000000u;}
static unsigned long long rank_key(float x,uint32_t id){return (unsigned long long)order_of(x)<<32|(uint32_t)~id;}
static float2 load_bias(const rose_cuda_linear&l,uint32_t n){if(!l.bias||n>=l.n)return {0,0};return {l.bias[n],n+1<l.n?l.bias[n+1]:0};}
template<typename T> static unsigned long long finish_pair(const rose_cuda_linear&l,const rose_cuda_io&io,uint32_t row,uint32_t n,float lo,float hi,const pair_inputs&in){
  if(row>=io.rows||n>=l.n)return 0; if(l.bias){lo+=in.bias.x;hi+=in.bias.y;} float*at=io.logits+(size_t)row*io.ld_logits+n; unsigned long long k=rank_key(lo,n); if(at[0]!=-7777)g_bad++; at[0]=lo; if(n+1>=l.n)return k; if(at[1]!=-7777)g_bad++; at[1]=hi; unsigned long long o=rank_key(hi,n+1); return o>k?o:k;}
static void __syncwarp(){wsync();}
#include <head.inc>
static uint16_t h16(float x){_Float16 v=(_Float16)x;uint16_t r;memcpy(&r,&v,2);return r;}
int main(){ srand(5); pthread_barrier_init(&g_block,0,128); for(auto&b:g_warp)pthread_barrier_init(&b,0,32); int fails=0,cases=0;
 uint32_t ks[]={64,192,200,384,768,832,1536}, ms[]={1,8,9,16,17,24,25,32}, ns[]={199,328,17}; 
 for(uint32_t k:ks)for(uint32_t m:ms)for(uint32_t n:ns){ if((k>800)&&n!=199)continue; if(k>=768&&m%8==1&&m!=17)continue;
  uint32_t kp=(k+31)/32*32,np=(n+127)/128*128; std::vector<uint16_t> w((size_t)kp*np),h((size_t)((m+7)/8*8)*kp);
  std::vector<float> wf((size_t)k*n),hf((size_t)m*k),bias(n); bool hasb=rand()%2,haskey=rand()%4!=0; for(auto&x:bias)x=(rand()%64-32)/64.f;
  for(uint32_t o=0;o<n;o++)for(uint32_t q=0;q<k;q++){float v=(rand()%17-8)/8.f;wf[(size_t)o*k+q]=v;
    // natural groups: lane n%8*4+t has k pairs (2t,2t+1),(2t+8,..) of the first 16, then of the second
    uint32_t tile=o/8,k32=q/32,kk=q%32,half=kk/16,e=kk%16,t=e%8/2,hi=e/8,lane=o%8*4+t; size_t at=((size_t)tile*(kp/32)+k32)*32*8+lane*8+half*4+hi*2+e%2; w[at]=h16(v);}
  for(uint32_t r=0;r<m;r++)for(uint32_t q=0;q<k;q++){float v=(rand()%17-8)/8.f;hf[(size_t)r*k+q]=v;size_t at=(((size_t)r/8*(kp/8)+q/8)*8+r%8)*8+q%8;h[at]=h16(v);}
  std::vector<float> y((size_t)m*(n+3),-7777); std::vector<unsigned long long> key(m,0);
  rose_cuda_linear l={w.data(),hasb?bias.data():nullptr,k,kp,n}; rose_cuda_io io={h.data(),m,0,y.data(),n+3,haskey?key.data():nullptr};
  g_w0=(const uint4*)w.data();g_w1=(const uint4*)(w.data()+w.size()); gridDim.x=rand()%2+1; g_bad=0; memset(g_rows,0x7e,sizeof g_rows);
  for(uint32_t b=0;b<gridDim.x;b++){ memset(g_keys,0xff,sizeof g_keys); memset(g_arrived,0xee,sizeof g_arrived); std::vector<std::thread> th; for(uint32_t t=0;t<128;t++)th.emplace_back([&,t]{threadIdx.x=t;blockIdx.x=b;
     bool whole=kp%384==0; 
     if(m<=8){if(whole)head_kernel<half_tag,1,true,true>(l,io);else head_kernel<half_tag,1,true,false>(l,io);}
     else if(m<=16){if(whole)head_kernel<half_tag,1,false,true>(l,io);else head_kernel<half_tag,1,false,false>(l,io);}
     else {if(whole)head_kernel<half_tag,2,false,true>(l,io);else head_kernel<half_tag,2,false,false>(l,io);} });
    for(auto&x:th)x.join(); }
  int bad=g_bad; // values are multiples of 1/64 in fp32: exact
  for(uint32_t r=0;r<m;r++){uint32_t best=0;for(uint32_t o=0;o<n+3;o++){float got=y[(size_t)r*(n+3)+o]; if(o>=n){bad+=got!=-7777;continue;} double s=hasb?bias[o]:0;for(uint32_t q=0;q<k;q++)s+=(double)wf[(size_t)o*k+q]*hf[(size_t)r*k+q]; bad+=got!=(float)s; if(y[(size_t)r*(n+3)+o]>y[(size_t)r*(n+3)+best])best=o;} if(haskey)bad+=~(uint32_t)key[r]!=best; }
  cases++; if(bad){fails++;printf("k %u m %u n %u grid %u: %d bad\n",k,m,n,gridDim.x,bad);} fflush(stdout);}
 printf("%d cases, %d fail\n",cases,fails); }

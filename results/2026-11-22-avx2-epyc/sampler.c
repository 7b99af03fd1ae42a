#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <math.h>
#include <string.h>
#include "backend/cpu/sampler.h"
#include "backend/cpu/kernels.h"
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e6+t.tv_nsec*1e-3;}
static int cmp(const void*a,const void*b){double x=*(double*)a,y=*(double*)b;return (x>y)-(x<y);}
int main(void){
 static rose_cpu_kernels kk;rose_cpu_kernels*k=&kk;rose_cpu_kernels_init(k,getenv("SC")?ROSE_ISA_SCALAR:ROSE_ISA_AVX2);
 enum{V=50257,N=300}; float*x=aligned_alloc(64,(V+63)*4); srand(1);
 void*sc=aligned_alloc(64,(rose_sampler_scratch(V)+127)/64*64);
 for(int i=0;i<V;i++){double u=(rand()+1.0)/(RAND_MAX+2.0),v=(rand()+1.0)/(RAND_MAX+2.0);x[i]=(float)(2*sqrt(-2*log(u))*cos(6.2831853*v));}
 struct{const char*n;rose_sampling p;}w[]={{"greedy",{.top_p=1}},{"T=1",{.temperature=1,.top_p=1}},{"T=1 min_p",{.temperature=1,.top_p=1,.min_p=0.05f}},{"T.7 top_p .9",{.temperature=.7f,.top_p=.9f}},{"T.7 p.9 k50",{.temperature=.7f,.top_p=.9f,.top_k=50}}};
 for(int j=0;j<5;j++){double t[N];unsigned long h=0;for(int i=0;i<N;i++){w[j].p.seed=i;double a=now();h=h*31+rose_sampler_pick(k,x,V,&w[j].p,i,sc);t[i]=now()-a;}qsort(t,N,8,cmp);printf("%-14s %.1f us (least %.1f) hash %lx\n",w[j].n,t[N/2],t[0],h);}
 return 0;}

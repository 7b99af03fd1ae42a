#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <dlfcn.h>
#ifdef PLAIN
void *aligned_alloc(size_t a, size_t n){ static void*(*r)(size_t,size_t); if(a<=64) return malloc(n); if(!r) r=dlsym(RTLD_NEXT,"aligned_alloc"); return r(a,n);}
#endif
static void *run(void *x){ (void)x; FILE*f=fopen(getenv("SHIM_OUT"),"a"); for(int i=0;;i++){ struct mallinfo2 m=mallinfo2(); long rss=0,sz; FILE*s=fopen("/proc/self/statm","r"); fscanf(s,"%ld %ld",&sz,&rss); fclose(s); fprintf(f,"%d s rss %.2f MB in_use %.3f free %.3f arena %.2f mmap %.2f\n",i*5,rss*4096/1e6,m.uordblks/1e6,m.fordblks/1e6,m.arena/1e6,m.hblkhd/1e6); fflush(f); sleep(5);} return 0;}
__attribute__((constructor)) static void go(void){ char c[4096]={0}; FILE*s=fopen("/proc/self/cmdline","r"); size_t n=fread(c,1,4095,s); fclose(s); for(size_t i=0;i+5<n;i++) if(!memcmp(c+i,"serve",6)){ pthread_t t; if(getenv("SHIM_OUT")) pthread_create(&t,0,run,0); break;} }

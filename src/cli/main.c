/* cli/main.c - the program: dispatches to one file per command. */
#include <stdio.h>

int main(void)
{
    puts("roseinfer " ROSE_VERSION);
    return 0;
}

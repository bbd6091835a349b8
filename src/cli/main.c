#include <stdio.h>
int main(void) {
    puts("hydrahead");
    return 0;
}

/* licenses.c - the notices of third-party libraries that `elpis --licenses` prints.
 *
 * A component is a name, its copyright lines, and one of the licence texts below.
 * Listed is what is linked into the program. The NVIDIA libraries are opened at run
 * time where the user installed them and are not part of it.
 */
#include <string.h>

#include "base/base.h"
#include "cli/program.h"

static const char mit[] =
    "Permission is hereby granted, free of charge, to any person obtaining a copy\n"
    "of this software and associated documentation files (the \"Software\"), to deal\n"
    "in the Software without restriction, including without limitation the rights\n"
    "to use, copy, modify, merge, publish, distribute, sublicense, and/or sell\n"
    "copies of the Software, and to permit persons to whom the Software is\n"
    "furnished to do so, subject to the following conditions:\n\n"
    "The above copyright notice and this permission notice shall be included in\n"
    "all copies or substantial portions of the Software.\n\n"
    "THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR\n"
    "IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,\n"
    "FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE\n"
    "AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER\n"
    "LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,\n"
    "OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE\n"
    "SOFTWARE.\n";

static const char isc[] =
    "Permission to use, copy, modify, and/or distribute this software for any\n"
    "purpose with or without fee is hereby granted, provided that the above\n"
    "copyright notice and this permission notice appear in all copies.\n\n"
    "THE SOFTWARE IS PROVIDED \"AS IS\" AND THE AUTHOR DISCLAIMS ALL WARRANTIES\n"
    "WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF\n"
    "MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR\n"
    "ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES\n"
    "WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN\n"
    "ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF\n"
    "OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.\n";

static const char bsd_3_clause[] =
    "Redistribution and use in source and binary forms, with or without\n"
    "modification, are permitted provided that the following conditions are met:\n\n"
    "1. Redistributions of source code must retain the above copyright notice,\n"
    "   this list of conditions and the following disclaimer.\n"
    "2. Redistributions in binary form must reproduce the above copyright notice,\n"
    "   this list of conditions and the following disclaimer in the documentation\n"
    "   and/or other materials provided with the distribution.\n"
    "3. Neither the name of the copyright holder nor the names of its contributors\n"
    "   may be used to endorse or promote products derived from this software\n"
    "   without specific prior written permission.\n\n"
    "THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS \"AS IS\"\n"
    "AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE\n"
    "IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE\n"
    "ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE\n"
    "LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR\n"
    "CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF\n"
    "SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS\n"
    "INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN\n"
    "CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE)\n"
    "ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE\n"
    "POSSIBILITY OF SUCH DAMAGE.\n";

static const char bsd_2_clause[] =
    "Redistribution and use in source and binary forms, with or without\n"
    "modification, are permitted provided that the following conditions are met:\n\n"
    "1. Redistributions of source code must retain the above copyright notice,\n"
    "   this list of conditions and the following disclaimer.\n"
    "2. Redistributions in binary form must reproduce the above copyright notice,\n"
    "   this list of conditions and the following disclaimer in the documentation\n"
    "   and/or other materials provided with the distribution.\n\n"
    "THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS \"AS IS\"\n"
    "AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE\n"
    "IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE\n"
    "ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE\n"
    "LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR\n"
    "CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF\n"
    "SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS\n"
    "INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN\n"
    "CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE)\n"
    "ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE\n"
    "POSSIBILITY OF SUCH DAMAGE.\n";

static const char unicode_data[] =
    "Permission is hereby granted, free of charge, to any person obtaining a copy\n"
    "of the Unicode data files and any associated documentation (the \"Data Files\")\n"
    "or Unicode software and any associated documentation (the \"Software\") to deal\n"
    "in the Data Files or Software without restriction, including without\n"
    "limitation the rights to use, copy, modify, merge, publish, distribute, and/or\n"
    "sell copies of the Data Files or Software, and to permit persons to whom the\n"
    "Data Files or Software are furnished to do so, provided that (a) the above\n"
    "copyright notice(s) and this permission notice appear with all copies of the\n"
    "Data Files or Software, (b) both the above copyright notice(s) and this\n"
    "permission notice appear in associated documentation, and (c) there is clear\n"
    "notice in each modified Data File or in the Software as well as in the\n"
    "documentation associated with the Data File(s) or Software that the data or\n"
    "software has been modified.\n\n"
    "THE DATA FILES AND SOFTWARE ARE PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY\n"
    "KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF\n"
    "MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT OF THIRD\n"
    "PARTY RIGHTS. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR HOLDERS INCLUDED IN\n"
    "THIS NOTICE BE LIABLE FOR ANY CLAIM, OR ANY SPECIAL INDIRECT OR CONSEQUENTIAL\n"
    "DAMAGES, OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR\n"
    "PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS\n"
    "ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THE\n"
    "DATA FILES OR SOFTWARE.\n\n"
    "Except as contained in this notice, the name of a copyright holder shall not\n"
    "be used in advertising or otherwise to promote the sale, use or other dealings\n"
    "in these Data Files or Software without prior written authorization of the\n"
    "copyright holder.\n";

static const struct {
    const char *name, *copyright, *text;
} components[] = {
    {"Lua", "Copyright (C) 1994-2022 Lua.org, PUC-Rio.", mit},
    {"libuv",
     "Copyright (c) 2015-present libuv project contributors.\n"
     "Copyright (c) Joyent, Inc. and other Node contributors.",
     mit},
    {"libuv: heap, queue, idna, inet",
     "Copyright (c) 2011-2018, Ben Noordhuis <info@bnoordhuis.nl>\n"
     "Copyright (c) 2004 by Internet Systems Consortium, Inc. (\"ISC\")\n"
     "Copyright (c) 1996-1999 by Internet Software Consortium.",
     isc},
    {"libuv: tree.h", "Copyright 2002 Niels Provos <provos@citi.umich.edu>. All rights reserved.",
     bsd_2_clause},
    {"llhttp", "Copyright Fedor Indutny, 2018.", mit},
    {"jansson", "Copyright (c) 2009-2020 Petri Lehtinen <petri@digip.org>", mit},
    {"PCRE2", "Copyright (c) 1997-2022 University of Cambridge. All rights reserved.",
     bsd_3_clause},
    {"PCRE2: just-in-time compiler, SLJIT",
     "Copyright (c) 2009-2022 Zoltan Herczeg. All rights reserved.", bsd_2_clause},
    {"utf8proc",
     "Copyright (c) 2014-2021 Steven G. Johnson, Jiahao Chen, Tony Kelman, Jonas Fonseca,\n"
     "and other contributors.\n"
     "Copyright (c) 2009, 2013 Public Software Group e. V., Berlin, Germany",
     mit},
    {"utf8proc: Unicode data", "Copyright (c) 1991-2007 Unicode, Inc. All rights reserved.",
     unicode_data},
    {"libsodium", "Copyright (c) 2013-2022 Frank Denis <j at pureftpd dot org>", isc},
    {"libsodium: password hashing, HMAC, SHA-2",
     "Copyright 2005, 2007, 2009 Colin Percival. All rights reserved.\n"
     "Copyright 2012, 2013 Alexander Peslyak. All rights reserved.",
     bsd_2_clause},
    {"libedit",
     "Copyright (c) 1992, 1993 The Regents of the University of California.\n"
     "All rights reserved.\n"
     "Copyright (c) 1997, 2001 The NetBSD Foundation, Inc. All rights reserved.",
     bsd_3_clause},
};

void licenses_print(FILE *file)
{
    fprintf(file, "This program contains the libraries below.\n");
    for (size_t i = 0; i < COUNT_OF(components); i++)
        fprintf(file, "\n---- %s\n\n%s\n\n%s", components[i].name, components[i].copyright,
                components[i].text);
}

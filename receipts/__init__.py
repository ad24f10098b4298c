"""Signed, hash-linked statements of what each phase took in and gave out. Stands alone."""

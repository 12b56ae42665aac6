"""All hosts: the choices of dropdowns that are only known while the host runs."""


def cross_attention_optimizations():
    import devhost_face

    return devhost_face.cross_attention_choices()

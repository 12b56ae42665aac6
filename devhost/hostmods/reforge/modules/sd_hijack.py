"""reForge: model_hijack without attention optimizations; apply_optimizations is not there at all."""


class StableDiffusionModelHijack:
    optimization_method = None

    def __init__(self):
        self.extra_generation_params, self.comments = {}, []

    def hijack(self, m):
        pass

    def undo_hijack(self, m):
        pass

    def redo_hijack(self, m):
        pass

    def clear_comments(self):
        self.extra_generation_params, self.comments = {}, []


model_hijack = StableDiffusionModelHijack()

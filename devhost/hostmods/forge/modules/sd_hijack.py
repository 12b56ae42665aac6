"""Forge: model_hijack is still there and does nothing."""


class StableDiffusionModelHijack:
    def apply_optimizations(self, option=None):
        pass

    def hijack(self, m):
        pass

    def undo_hijack(self, m):
        pass

    def redo_hijack(self, m):
        pass

    def clear_comments(self):
        pass


model_hijack = StableDiffusionModelHijack()

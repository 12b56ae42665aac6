"""All hosts: the few components of their own that extensions use."""

import gradio as gr


class ToolButton(gr.Button):
    def __init__(self, *args, tooltip=None, **kwargs):
        super().__init__(*args, elem_classes=["tool"], **kwargs)

    def get_block_name(self):
        return "button"


class FormRow(gr.Row):
    def get_block_name(self):
        return "row"

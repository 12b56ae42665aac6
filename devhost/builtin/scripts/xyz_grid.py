"""All hosts: the X/Y/Z plot script in small. An extension adds an AxisOption to `axis_options` of this very module,
which it finds among `scripts.scripts_data`; every cell of the grid is a generation of its own.
"""

import copy

import gradio as gr
from modules import processing, scripts


class AxisOption:
    """apply(p, x, xs) prepares one cell; choices() lists the values a dropdown offers."""

    def __init__(self, label, type, apply, format_value=None, confirm=None, cost=0.0, choices=None, prepare=None):
        self.label, self.type, self.apply, self.confirm = label, type, apply, confirm
        self.format_value = format_value or (lambda p, option, x: f"{option.label}: {x}")
        self.cost, self.choices, self.prepare = cost, choices, prepare


class AxisOptionImg2Img(AxisOption):
    is_img2img = True


class AxisOptionTxt2Img(AxisOption):
    is_img2img = False


def apply_field(field):
    def apply(p, x, xs):
        setattr(p, field, x)
    return apply


def apply_override(field, boolean=False):
    def apply(p, x, xs):
        p.override_settings[field] = x.lower() == "true" if boolean else x
    return apply


axis_options = [
    AxisOption("Nothing", str, lambda p, x, xs: None),
    AxisOption("Seed", int, apply_field("seed")),
    AxisOption("Steps", int, apply_field("steps")),
]


class Script(scripts.Script):
    def title(self):
        return "X/Y/Z plot"

    def ui(self, is_img2img):
        """[x type, x values, y type, y values]; types are indices into axis_options, values are comma-separated."""
        labels = [option.label for option in axis_options]
        controls = []
        for axis in "xy":
            controls.append(gr.Dropdown(label=f"{axis.upper()} type", choices=labels, value=labels[0], type="index",
                                        elem_id=self.elem_id(f"{axis}_type")))
            controls.append(gr.Textbox(label=f"{axis.upper()} values", value="",
                                       elem_id=self.elem_id(f"{axis}_values")))
        return controls

    def run(self, p, x_type, x_values, y_type, y_values):
        def axis(index, text):
            option = axis_options[index]
            return option, [option.type(value.strip()) for value in text.split(",")] if index else [""]

        (x_option, xs), (y_option, ys) = axis(x_type, x_values), axis(y_type, y_values)
        p.seed = processing.get_fixed_seed(p.seed)
        result = None
        for y in ys:
            for x in xs:
                cell = copy.copy(p)
                cell.override_settings = dict(p.override_settings)
                cell.extra_generation_params = {}
                x_option.apply(cell, x, xs)
                y_option.apply(cell, y, ys)
                processed = processing.process_images(cell)
                if result is None:
                    result = processed
                else:
                    result.images += processed.images
                    result.infotexts += processed.infotexts
        return result

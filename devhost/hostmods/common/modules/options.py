"""All hosts: settings. An OptionInfo describes one, Options holds the values and keeps them in config.json."""

import json
import sys

import gradio as gr

from modules import errors


class OptionInfo:
    def __init__(self, default=None, label="", component=None, component_args=None, onchange=None, section=None,
                 refresh=None, comment_before="", comment_after="", infotext=None, restrict_api=False,
                 category_id=None):
        self.default, self.label, self.component, self.component_args = default, label, component, component_args
        self.onchange, self.section, self.refresh, self.category_id = onchange, section, refresh, category_id
        self.comment_before, self.comment_after = comment_before, comment_after
        self.infotext, self.restrict_api = infotext, restrict_api
        self.do_not_save = False

    def link(self, label, url):
        self.comment_before += f"[<a href='{url}' target='_blank'>{label}</a>]"
        return self

    def js(self, label, js_func):
        self.comment_before += f"[<a onclick='{js_func}(); return false'>{label}</a>]"
        return self

    def info(self, info):
        self.comment_after += f"<span class='info'>({info})</span>"
        return self

    def html(self, html):
        self.comment_after += html
        return self

    def needs_restart(self):
        return self.info("requires restart")

    def needs_reload_ui(self):
        return self.info("requires Reload UI")


class OptionHTML(OptionInfo):
    def __init__(self, text):
        super().__init__(str(text).strip(), component=lambda **kwargs: gr.HTML(elem_classes="settings-info", **kwargs))
        self.do_not_save = True


def options_section(section_identifier, options_dict):
    """section_identifier: (id, title) or (id, title, category)."""
    for info in options_dict.values():
        info.section = section_identifier[:2]
        info.category_id = section_identifier[2] if len(section_identifier) == 3 else info.category_id
    return options_dict


class Options:
    _fields = {"data_labels", "data"}

    def __init__(self, data_labels):
        self.data_labels = data_labels
        self.data = {key: info.default for key, info in data_labels.items() if not info.do_not_save}

    def __setattr__(self, key, value):
        if key in self._fields or (key not in self.data and key not in self.data_labels):
            return super().__setattr__(key, value)
        info = self.data_labels.get(key)
        if info.do_not_save:  # as in the hosts, a key without a label fails here
            return None
        if isinstance(info.component_args, dict) and info.component_args.get("visible", True) is False:
            raise RuntimeError(f"not possible to set '{key}' because it is restricted")
        self.data[key] = value
        return None

    def __getattr__(self, key):
        if key in self._fields:
            return super().__getattribute__(key)
        if key in self.data:
            return self.data[key]
        if key in self.data_labels:
            return self.data_labels[key].default
        return super().__getattribute__(key)

    def set(self, key, value, is_api=False, run_callbacks=True):
        """Sets a value and runs its onchange; True if it changed. An exception in onchange puts the old value back."""
        old = self.data.get(key)
        if old == value:
            return False
        info = self.data_labels[key]
        if info.do_not_save or (is_api and info.restrict_api):
            return False
        try:
            setattr(self, key, value)
        except RuntimeError:
            return False
        if run_callbacks and info.onchange is not None:
            try:
                info.onchange()
            except Exception as e:
                errors.display(e, f"changing setting {key} to {value}")
                setattr(self, key, old)
                return False
        return True

    def get_default(self, key):
        info = self.data_labels.get(key)
        return None if info is None else info.default

    def onchange(self, key, func, call=True):
        self.data_labels[key].onchange = func
        if call:
            func()

    def add_option(self, key, info):
        self.data_labels[key] = info
        if key not in self.data and not info.do_not_save:
            self.data[key] = info.default

    @staticmethod
    def same_type(x, y):
        as_number = {int: float}
        kind_x, kind_y = (as_number.get(type(value), type(value)) for value in (x, y))
        return x is None or y is None or kind_x == kind_y

    def save(self, filename):
        with open(filename, "w", encoding="utf8") as file:
            json.dump(self.data, file, indent=4, ensure_ascii=False)

    def load(self, filename):
        try:
            with open(filename, encoding="utf8") as file:
                self.data = json.load(file)
        except FileNotFoundError:
            self.data = {}
        for key, value in self.data.items():
            info = self.data_labels.get(key)
            if info is not None and not self.same_type(info.default, value):
                print(f"Warning: bad setting value: {key}: {value} ({type(value).__name__}; expected "
                      f"{type(info.default).__name__})", file=sys.stderr)

    def dumpjson(self):
        """What the page's `opts` variable holds."""
        values = {key: self.data.get(key, info.default) for key, info in self.data_labels.items()}
        values["_comments_before"] = {k: v.comment_before for k, v in self.data_labels.items() if v.comment_before}
        values["_comments_after"] = {k: v.comment_after for k, v in self.data_labels.items() if v.comment_after}
        return json.dumps(values)

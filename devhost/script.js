// What the hosts' own script.js and ui.js offer to extensions: gradioApp(), opts, and the callbacks below.
var opts = {};
var uiUpdateCallbacks = [];
var uiAfterUpdateCallbacks = [];
var uiLoadedCallbacks = [];
var uiTabChangeCallbacks = [];
var optionsChangedCallbacks = [];
var optionsAvailableCallbacks = [];

function gradioApp() {
    const app = document.getElementsByTagName('gradio-app')[0] || document;
    if (app !== document) app.getElementById = (id) => document.getElementById(id);
    return app.shadowRoot || app;
}

function get_uiCurrentTab() {
    return gradioApp().querySelector('#tabs > .tab-nav > button.selected');
}

function get_uiCurrentTabContent() {
    return gradioApp().querySelector('#tabs > .tabitem[id^=tab_]:not([style*="display: none"])');
}

function onUiUpdate(callback) { uiUpdateCallbacks.push(callback); }
function onAfterUiUpdate(callback) { uiAfterUpdateCallbacks.push(callback); }
function onUiLoaded(callback) { uiLoadedCallbacks.push(callback); }
function onUiTabChange(callback) { uiTabChangeCallbacks.push(callback); }
function onOptionsChanged(callback) { optionsChangedCallbacks.push(callback); }
function onOptionsAvailable(callback) {
    if (Object.keys(opts).length) callback();
    else optionsAvailableCallbacks.push(callback);
}

function executeCallbacks(callbacks, argument) {
    for (const callback of callbacks) {
        try {
            callback(argument);
        } catch (error) {
            console.error('error running callback', callback, error);
        }
    }
}

function readOptions() {
    const field = gradioApp().querySelector('#settings_json textarea');
    if (!field || !field.value || field.value === readOptions.last) return;
    const first = !readOptions.last;
    readOptions.last = field.value;
    opts = JSON.parse(field.value);
    executeCallbacks(first ? optionsAvailableCallbacks : optionsChangedCallbacks);
}

// Called by the button Reload UI: waits until the server answers again.
function restart_reload() {
    const wait = () => fetch(location.href).then(() => location.reload(), () => setTimeout(wait, 500));
    setTimeout(wait, 2000);
    return [];
}

document.addEventListener('DOMContentLoaded', function() {
    let loaded = false, currentTab = null, afterUpdate = null;
    new MutationObserver(function(mutations) {
        if (!loaded && gradioApp().querySelector('#txt2img_prompt')) {
            loaded = true;
            executeCallbacks(uiLoadedCallbacks);
        }
        readOptions();
        executeCallbacks(uiUpdateCallbacks, mutations);
        clearTimeout(afterUpdate);
        afterUpdate = setTimeout(() => executeCallbacks(uiAfterUpdateCallbacks), 200);
        const tab = get_uiCurrentTab();
        if (tab && tab !== currentTab) {
            currentTab = tab;
            executeCallbacks(uiTabChangeCallbacks);
        }
    }).observe(gradioApp(), {childList: true, subtree: true});
});

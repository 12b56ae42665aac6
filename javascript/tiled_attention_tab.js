// The tab "Attention": fills itself when it is opened, and puts the report on the clipboard.

class TiledAttentionTab {
    static opened() {
        const content = get_uiCurrentTabContent();
        if (content && content.id === 'tab_tiled_attention') {
            gradioApp().querySelector('#tiled_attention_refresh')?.click();
        }
    }

    // Called by the button with the report; browsers offer the clipboard only to https and localhost.
    static async copy(report) {
        try {
            await navigator.clipboard.writeText(report);
        } catch {
            const field = gradioApp().querySelector('#tiled_attention_report textarea');
            field?.select();
            document.execCommand('copy');
        }
        return [];
    }
}

onUiLoaded(() => onUiTabChange(() => TiledAttentionTab.opened()));

// The badge by the generation info: which attention made the picture, the last generations on a click.

class TiledAttentionBadge {
    static api = './tiled-attention/v1/';
    static quiet = 300; // ms without a change of the results before the server is asked

    constructor(tab) {
        this.tab = tab;
        this.results = gradioApp().querySelector(`#${tab}_results`);
        const info = gradioApp().querySelector(`#html_info_${tab}`);
        if (!this.results || !info) return;

        this.button = document.createElement('button');
        this.button.type = 'button';
        this.button.className = 'tiled-attention-badge';
        this.button.addEventListener('click', () => this.open());
        this.row = document.createElement('div');
        this.row.className = 'tiled-attention-row';
        this.row.hidden = true;
        this.row.append(this.button);
        info.before(this.row);
        this.start();
    }

    // The row takes its place at once if the server answers, so that nothing moves after a generation.
    async start() {
        this.answers = (await this.ask('last')) !== undefined;
        this.applySetting();
        if (!this.answers) return;
        new MutationObserver((records) => this.changed(records))
            .observe(this.results, {childList: true, subtree: true, characterData: true});
    }

    applySetting() {
        this.row.hidden = !this.answers || opts.tiled_badge === false;
    }

    // undefined where the server does not answer, e.g. because of --api-auth.
    async ask(what) {
        try {
            const answer = await fetch(TiledAttentionBadge.api + what, {headers: {'X-Requested-With': 'fetch'}});
            return answer.ok ? await answer.json() : undefined;
        } catch {
            return undefined;
        }
    }

    // Live previews and progress bars change all the time and say nothing.
    changed(records) {
        const noise = '.livePreview, .progressDiv, .tiled-attention-row';
        const news = records.some(({target}) => {
            const element = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
            return element && !element.closest(noise);
        });
        if (!news) return;
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.update(), TiledAttentionBadge.quiet);
    }

    async update() {
        const interrupt = gradioApp().querySelector(`#${this.tab}_interrupt`);
        const running = interrupt && interrupt.style.display === 'block'; // the hosts show it meanwhile
        if (running || this.row.hidden) return;
        const last = await this.ask('last');
        if (last) this.show(last);
    }

    show({attention, line, status}) {
        this.button.textContent = `Attention: ${attention}${status === 'done' ? '' : ` (${status})`}`;
        this.button.title = line;
        this.row.classList.add('filled');
    }

    async open() {
        const generations = await this.ask('history');
        if (!generations) return;
        const dialog = document.createElement('dialog');
        dialog.className = 'tiled-attention-history';
        const title = document.createElement('h3');
        title.textContent = 'Attention of the last generations';
        const close = document.createElement('button');
        close.type = 'button';
        close.textContent = 'Close';
        const list = document.createElement('ol');
        for (const {started, seconds, line} of generations) {
            const item = document.createElement('li');
            const time = document.createElement('time');
            time.textContent = `${new Date(started * 1000).toLocaleTimeString()}, ${seconds.toFixed(1)} s`;
            item.append(time, line);
            list.append(item);
        }
        dialog.append(title, list, close);
        document.body.append(dialog);
        close.addEventListener('click', () => dialog.close());
        dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
        dialog.addEventListener('close', () => dialog.remove());
        dialog.showModal();
    }
}

onUiLoaded(() => {
    const badges = ['txt2img', 'img2img'].map((tab) => new TiledAttentionBadge(tab)).filter((badge) => badge.row);
    const apply = () => badges.forEach((badge) => badge.applySetting());
    onOptionsAvailable(apply);
    onOptionsChanged(apply);
});
